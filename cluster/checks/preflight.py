"""`pickaxe preflight`: what the groups of a run's first steps look like, before anybody trains on them.

The tasks are the independent draws, so every interval is over tasks. A group is `mixed` if its rewards differ: only then does a
baseline of siblings leave a gradient. With shaped rewards a group that nobody solved can be mixed.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.checks.rehearsal import rehearsed
from cluster.config import RunConfig
from cluster.loop import Training
from cluster.sample import Sampled, finish_sampling
from cluster.scores import interval, wilson
from cluster.show.live import LiveView
from learner.plan import resolve
from rollout.types import Group, Trajectory, Turn


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A share with its 95 % interval over tasks."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """How long one step takes, in seconds: sampling its groups, learning from them, pushing and attesting the weights.

    In rounds it is a step that only grows the data set, and the improve phase comes on top.
    """

    generate: float
    learn: float
    push: float

    @property
    def step(self) -> float:
        """All three: nothing overlaps in the synchronous loop."""
        return self.generate + self.learn + self.push


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What was seen. `histogram[k]` counts the groups of which k of the G siblings succeeded; `failed` groups had no environment.

    `invalid_turns` is a share of all turns, without those that a token limit cut; `cut_turns` and `cut_contexts` are the shares of
    the episodes that `rollout.max_turn_tokens` and `rollout.max_context_tokens` ended. `compares_siblings` says whether equal
    rewards leave the method no gradient.
    """

    method: str
    compares_siblings: bool
    in_rounds: bool
    best_success: float
    cold_started: bool
    group_size: int
    groups_per_step: int
    failed: int
    histogram: tuple[int, ...]
    success: Estimate
    all_zero: Estimate
    all_one: Estimate
    mixed: Estimate
    invalid_turns: float
    cut_turns: float
    cut_contexts: float
    turns: float
    turn_tokens_median: float
    turn_tokens_p95: float
    longest_episode: int
    max_turn_tokens: int
    max_context_tokens: int

    @property
    def groups(self) -> int:
        """How many groups were played to the end."""
        return sum(self.histogram)


def preflight(config: RunConfig, tasks: int, view: LiveView) -> tuple[Preflight, StepSeconds]:
    """Play the groups of the first steps with the policy that RL would start from: `tasks` tasks, rounded up to whole steps.

    Then take two steps and throw them away, to know how long one takes.
    """
    with rehearsed(config, view) as training:
        count = math.ceil(tasks / config.rollout.groups_per_step)
        sampled, seconds = [], []
        for step in range(1, count + 1):
            view.progress(step - 1, count, f"playing {count * config.rollout.groups_per_step} groups")
            begun = time.perf_counter()
            sampled.append(finish_sampling(training.sample(step), config, f"sampling step {step}"))
            seconds.append(time.perf_counter() - begun)
        view.phase("timing two steps of learning")
        _learn(training, 1, sampled[0])  # warms up kernels and caches
        fresh = finish_sampling(training.sample(count + 1), config, "sampling one more step")
        learn, push = _learn(training, 2, fresh)
    groups = [group for batch in sampled for group in batch.groups]
    found = measure(groups, config, failed=sum(len(batch.failures) for batch in sampled))
    return found, StepSeconds(generate=statistics.median(seconds), learn=learn, push=push)


def measure(groups: Sequence[Group], config: RunConfig, *, failed: int) -> Preflight:
    """The numbers of groups that were played with `config`; `failed` more had an environment that failed."""
    plan, size = resolve(config.algorithm), config.rollout.group_size
    episodes = [episode for group in groups for episode in group.trajectories]
    turns = [(episode, turn) for episode in episodes for turn in episode.turns]
    lengths = sorted(len(turn.token_ids) for _, turn in turns)
    solved = [sum(episode.solved for episode in group.trajectories) for group in groups]
    counts = Counter(solved)
    cut = Counter(_limit(episode, config.rollout.max_turn_tokens) for episode in episodes)
    success = statistics.fmean(solved) / size
    low, high = interval([count / size for count in solved])

    def share(groups_n: int) -> Estimate:
        low, high = wilson(groups_n / len(groups), len(groups))
        return Estimate(value=groups_n / len(groups), low=low, high=high)

    return Preflight(
        method=config.algorithm.method,
        compares_siblings=plan.needs_group,
        in_rounds=plan.in_rounds,
        best_success=config.env.spec.best_success(config.env_params),
        cold_started=config.cold_start.episodes > 0,
        group_size=size,
        groups_per_step=config.rollout.groups_per_step,
        failed=failed,
        histogram=tuple(counts[number] for number in range(size + 1)),
        success=Estimate(value=success, low=low, high=high),
        all_zero=share(sum(group.dead and not group.trajectories[0].solved for group in groups)),
        all_one=share(sum(group.dead and group.trajectories[0].solved for group in groups)),
        mixed=share(sum(not group.dead for group in groups)),
        invalid_turns=sum(not turn.valid and not _was_cut(episode, turn) for episode, turn in turns) / len(turns),
        cut_turns=cut["turn"] / len(episodes),
        cut_contexts=cut["context"] / len(episodes),
        turns=len(turns) / len(episodes),
        turn_tokens_median=statistics.median(lengths),
        turn_tokens_p95=lengths[math.ceil(0.95 * len(lengths)) - 1],
        longest_episode=max(len(episode.token_ids) for episode in episodes),
        max_turn_tokens=config.rollout.max_turn_tokens,
        max_context_tokens=config.rollout.max_context_tokens,
    )


def _was_cut(episode: Trajectory, turn: Turn) -> bool:
    """True if a token limit ended the turn, so that the environment never saw it."""
    return episode.end.truncated and turn is episode.turns[-1] and not turn.valid and not turn.observation


def _limit(episode: Trajectory, max_turn_tokens: int) -> str | None:
    """Which token limit ended the episode: `turn`, `context`, or None."""
    if not episode.end.truncated:
        return None
    last = episode.turns[-1]
    return "turn" if _was_cut(episode, last) and len(last.token_ids) == max_turn_tokens else "context"


def _learn(training: Training, step: int, sampled: Sampled) -> tuple[float, float]:
    """Seconds of learning from a batch, and of the push after it if the weights moved."""
    training.clock = {}
    with training.timed("whole"):
        training.learn(step, sampled)
    with training.timed("push"):
        if training.moved:
            training.push()
    return training.clock["whole"], training.clock["push"]
