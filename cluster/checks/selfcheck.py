"""`pickaxe selfcheck`: does a step of this recipe depend on how it is cut, and do sampler and learner see one policy.

One batch is sampled with the policy that RL would start from. Its first optimiser step, with the recipe's own algorithm and SGD, is
then taken again and again from the same weights: with other micro-batches, on other numbers of ranks, in another order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from cluster.actors import RunError
from cluster.checks.rehearsal import rehearsed
from cluster.checks.selfcheck_cases import Case, cases
from cluster.checks.selfcheck_step import Outcome, Setup, largest_difference, opened, plain, take, take_as_ranks
from cluster.config import RunConfig
from cluster.sample import finish_sampling
from cluster.show.live import LiveView
from envs.errors import InputError
from learner.batch import optimizer_steps
from learner.credit import initial_baseline
from learner.deal import deal
from learner.learner import Learner
from learner.plan import resolve
from learner.types import Judgement, OptimizerStep
from rollout.types import Group, Trajectory

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.02}
"""Largest difference that counts as rounding, relative to the largest update, by `learner.dtype`."""


@dataclass(frozen=True, kw_only=True)
class StepCheck:
    """One way to cut the step: its largest difference to the reference, relative to the reference's largest update, and the
    relative difference of the gradient's norm, which covers a learned value too."""

    name: str
    ranks: int
    micro_batches: int
    difference: float
    norm_difference: float
    passed: bool


@dataclass(frozen=True, kw_only=True)
class LogprobCheck:
    """|learner - sampler| over all sampled tokens in nats, and the probability ratios learner / sampler, which should be 1."""

    tokens: int
    max_gap: float
    mean_gap: float
    min_ratio: float
    max_ratio: float
    tolerance: float
    passed: bool


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """What was compared; `steps[0]` is the reference against itself, taken a second time."""

    method: str
    dtype: str
    zero_stage: int
    episodes: int
    largest_update: float
    tolerance: float
    steps: tuple[StepCheck, ...]
    logprobs: LogprobCheck
    left_out: str | None

    @property
    def passed(self) -> bool:
        """True if nothing failed."""
        return self.logprobs.passed and all(step.passed for step in self.steps)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a policy (a Hugging Face folder) sampled as its `version`, and what the learner said of it if the method asks."""

    policy: Path
    groups: list[Group]
    judged: list[Judgement] | None
    version: int


def sample_batch(config: RunConfig, view: LiveView, policy: Path) -> Batch:
    """One batch of groups from the policy that RL would start from, which is written to the folder `policy`."""
    with rehearsed(config, view) as training:
        view.phase("sampling one batch")
        sampled = finish_sampling(training.sample(1), config, "sampling the batch")
        training.clock = {}
        judged = training.judge(sampled.groups) if training.plan.needs_judgement else None
        training.cluster.learn(lambda rank: rank.export.remote(policy), "exporting the policy")
        return Batch(policy=policy, groups=sampled.groups, judged=judged, version=training.version)


def check_batch(config: RunConfig, batch: Batch, view: LiveView, scratch: Path) -> SelfCheck:
    """Compare everything; large things lie in `scratch`. Raises `InputError` if the batch has no gradient to compare."""
    ranks = sorted({2, max(2, config.cluster.learners)})
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else None
    possible = [count for count in ranks if gpus is None or count <= gpus]
    left_out = None if possible == ranks else f"steps on {ranks[-1]} ranks were left out: this machine has {gpus} GPU(s)"
    ways = cases(lambda count, budget: _cut(config, batch, count, budget), budget=config.learner.micro_batch_tokens, ranks=possible)
    setup = Setup(
        policy=str(batch.policy),
        algorithm=config.algorithm,
        learner=plain(config.learner),
        temperature=config.rollout.temperature,
        timeout_s=config.cluster.step_timeout_s,
    )
    threads = config.cluster.learner_threads
    torch.set_num_threads(threads)
    view.phase("comparing the log-probs of sampler and learner")
    with opened(setup) as learner:
        before = {name: weight.cpu().clone() for name, weight in learner.named_weights()}
        logprobs = compare_logprobs(learner, batch.groups, config)
        norm = float(learner.train_step(ways[0].shares[0])["learner/grad_norm"].value)
        reference = {name: weight.cpu().clone() for name, weight in learner.named_weights()}
    update = largest_difference(before.items(), reference)
    if not update:
        raise InputError(
            f"the batch has no gradient: with method {config.algorithm.method} not one of its {len(_episodes(batch.groups))} episodes has "
            "credit, so there is nothing to compare. Look at it with pickaxe preflight, and start from a better policy: a run's folder "
            "in the recipe's place, model.path, or cold_start.episodes"
        )
    outcomes = _outcomes(setup, ways, reference, scratch, threads, view)
    tolerance = TOLERANCES[config.learner.dtype]
    return SelfCheck(
        method=config.algorithm.method,
        dtype=config.learner.dtype,
        zero_stage=config.learner.zero_stage,
        episodes=len(_episodes(batch.groups)),
        largest_update=update,
        tolerance=tolerance,
        steps=tuple(judge_step(case, outcome, update, norm, tolerance) for case, outcome in zip(ways, outcomes, strict=True)),
        logprobs=logprobs,
        left_out=left_out,
    )


def judge_step(case: Case, outcome: Outcome, update: float, norm: float, tolerance: float) -> StepCheck:
    """Relative differences, and whether they are rounding; NaN never is."""
    difference, norm_difference = outcome.largest / update, abs(outcome.grad_norm - norm) / norm
    return StepCheck(
        name=case.name,
        ranks=case.ranks,
        micro_batches=case.accumulated,
        difference=difference,
        norm_difference=norm_difference,
        passed=difference <= tolerance and norm_difference <= tolerance,
    )


def compare_logprobs(learner: Learner, groups: Sequence[Group], config: RunConfig) -> LogprobCheck:
    """Score every episode with the learner, at the sampler's temperature, and compare the tokens that were sampled."""
    episodes = _episodes(groups)
    gaps = []
    budget = config.learner.micro_batch_tokens
    for numbers in deal([len(episode.token_ids) for episode in episodes], ranks=1, budget=budget)[0]:
        part = [episodes[number] for number in numbers]
        scored = learner.logprobs([episode.token_ids for episode in part], config.rollout.temperature)
        for episode, logps in zip(part, scored, strict=True):
            tokens = zip(episode.action_mask[1:], episode.logp_old[1:], logps, strict=True)
            gaps += [logp - old for sampled, old, logp in tokens if sampled]
    largest = max(map(abs, gaps))
    return LogprobCheck(
        tokens=len(gaps),
        max_gap=largest,
        mean_gap=sum(map(abs, gaps)) / len(gaps),
        min_ratio=math.exp(min(gaps)),
        max_ratio=math.exp(max(gaps)),
        tolerance=config.learner.max_logprob_gap,
        passed=largest <= config.learner.max_logprob_gap,
    )


def _episodes(groups: Sequence[Group]) -> list[Trajectory]:
    return [episode for group in groups for episode in group.trajectories]


def _cut(config: RunConfig, batch: Batch, ranks: int, budget: int) -> OptimizerStep:
    """The first optimiser step of the batch, as the loop would pack it."""
    plan = resolve(config.algorithm)
    steps, _, _ = optimizer_steps(
        batch.groups,
        plan,
        ranks=ranks,
        micro_batch_tokens=budget,
        generation_limit=config.generation_limit,
        baseline_state=initial_baseline(plan),
        current_version=batch.version,
        minibatches=config.learner.minibatches,
        judged=batch.judged,
    )
    return steps[0]


def _outcomes(
    setup: Setup, ways: Sequence[Case], reference: dict[str, torch.Tensor], scratch: Path, threads: int, view: LiveView
) -> list[Outcome]:
    outcomes = []
    alone = [case for case in ways if case.ranks == 1]
    for number, case in enumerate(alone):
        view.progress(number, len(alone), "taking the step again, cut another way")
        with opened(setup) as learner:
            outcomes.append(take(learner, case, reference))
    for count in dict.fromkeys(case.ranks for case in ways if case.ranks > 1):
        view.phase(f"taking the step on {count} ranks")
        among = [case for case in ways if case.ranks == count]
        try:
            outcomes += take_as_ranks(setup, among, reference, scratch, max(1, threads // count))
        except (ProcessExitedException, ProcessRaisedException) as error:
            raise RunError(f"the step on {count} ranks failed:\n{error}") from error
    return outcomes
