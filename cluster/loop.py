"""The training loop, from top to bottom: sample groups, weigh their tokens, learn, push, attest.

One loop for synchronous and asynchronous training. It consumes tasks; every step, or every round of steps, it produces one
version of the weights. It waits for the groups of the oldest batch in flight, for the learner, and for the push.
`cluster.max_lag` batches are in flight beside the one that is learned from: with 0 the next batch is sampled only after the
push, by exactly the weights that it will train.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.actors import Cluster, running
from cluster.attest import Attestation, attest, check_gap, check_versions
from cluster.cold_start import cold_start
from cluster.config import RunConfig
from cluster.curriculum.stream import TaskStream
from cluster.dead_groups import Remedies
from cluster.failures import FailureReport
from cluster.improve import Rounds
from cluster.measure import learner_metrics, rollout_metrics, summary_metrics
from cluster.memory import memory_metrics
from cluster.prepare import eval_tasks, prepare_model, probe
from cluster.run_folder import RunFolder
from cluster.sample import Sampled, evaluate, finish_sampling, start_sampling
from cluster.scores import eval_metrics
from cluster.show.live import LiveView
from cluster.sinks import MetricSink
from envs.metrics import reduce_metrics
from learner.batch import optimizer_steps
from learner.credit import credit, initial_baseline
from learner.plan import resolve
from learner.types import Judgement
from rollout.chat import load_encoder
from rollout.generator import GroupRequest
from rollout.play import sampling_seed
from rollout.types import Group


def train(config: RunConfig, folder: RunFolder, view: LiveView) -> dict[str, Any]:
    """Run a whole training and return its summary; everything it leaves behind lies in `folder`."""
    begun = time.perf_counter()
    with started(config, folder, view) as run:
        summary = run.rl()
    return summary | {"seconds": time.perf_counter() - begun}


@contextmanager
def started(config: RunConfig, folder: RunFolder, view: LiveView) -> Iterator["Training"]:
    """A training up to its first RL step: every process is up, and the cold start is done if the recipe has one."""
    view.phase("preparing the model")
    model = prepare_model(config, folder.path)
    view.phase(f"starting {config.cluster.generators} generator(s), {config.cluster.learners} learner rank(s)")
    with running(config, model) as cluster, folder.sink(config) as sink:
        run = Training(config, folder, view, cluster, sink, model)
        run.start()
        yield run


class Training:
    """The state of one run: the version of the weights, the moving baseline, the stream of tasks, the last attestation."""

    def __init__(self, config: RunConfig, folder: RunFolder, view: LiveView, cluster: Cluster, sink: MetricSink, model: str) -> None:
        self.config, self.folder, self.view, self.cluster, self.sink = config, folder, view, cluster, sink
        self.encoder = load_encoder(model, observation_role=config.model.observation_role)
        self.plan = resolve(config.algorithm)
        self.baseline = initial_baseline(self.plan)
        self.probe = probe(config, self.encoder)
        self.tasks = TaskStream(config)
        self.remedies = Remedies(self.plan, cluster, self.encoder, self.tasks, view)
        self.eval_tasks = eval_tasks(config)
        self.failures = FailureReport(view)
        self.version = 0
        self.attested: Attestation | None = None
        self.worst_gap = 0.0
        self.episodes = 0
        self.moved = False
        self.rounds: Rounds | None = None
        self.clock: dict[str, float] = {}

    def start(self) -> None:
        """Prove that both sides start from the same weights, then imitate demonstrations if the recipe says so."""
        self.attest()
        if self.config.cold_start.episodes:
            cold_start(self.config, self.cluster, self.encoder, self.view)
            self.push()
        steps_per_batch = self.config.learner.epochs * self.config.learner.minibatches
        total = self.config.steps * steps_per_batch
        start = "mark" if self.plan.method.data == "newest" else "here"
        self.cluster.learn(lambda rank: rank.begin.remote(self.config.algorithm, self.config.learner, total, start), "beginning RL")
        self.rounds = Rounds(self.plan, self.cluster, self.view, self.version) if self.plan.in_rounds else None

    def rl(self) -> dict[str, Any]:
        """All RL steps, evaluations and exports; returns the summary."""
        config = self.config
        self.view.phase("evaluating before RL")
        before = last = self.evaluate(0)
        self.sink.write(0, before | {"env/best_success": config.env.spec.best_success(config.env_params)})
        begun = time.perf_counter()
        in_flight: deque[list[Any]] = deque()
        for step in range(1, config.steps + 1):
            self.clock = {}
            step_begun = time.perf_counter()
            while len(in_flight) <= min(config.cluster.max_lag, config.steps - step):
                in_flight.append(self.sample(step + len(in_flight)))
            with self.timed("generate"):
                sampled = finish_sampling(in_flight.popleft(), config, f"sampling step {step}")
            metrics = self.learn(step, sampled)
            if self.moved:
                with self.timed("push"):
                    metrics |= self.push()
            metrics["time/step_s"] = time.perf_counter() - step_begun
            # What is not waiting for a generator, a learner or a push is the controller's own share of the step.
            metrics |= {f"time/{name}_s": seconds for name, seconds in self.clock.items()}
            waited = sum(self.clock.get(name, 0.0) for name in ("generate", "learn", "push"))
            metrics["time/controller_s"] = metrics["time/step_s"] - waited
            if step % config.eval.every == 0 or step == config.steps:
                last = self.evaluate(step)
                metrics |= last
            self.sink.write(step, metrics)
            self.view.step(step, metrics)
            if config.output.checkpoint_every and step % config.output.checkpoint_every == 0 and step < config.steps:
                self.export(step)
        self.view.phase("exporting the policy")
        self.export(config.steps)
        return self.summary(before, last, time.perf_counter() - begun)

    def sample(self, step: int) -> list[Any]:
        """Start sampling the groups of `step`."""
        size = self.config.rollout.group_size
        requests = [GroupRequest(task=task, group=number, size=size) for number, task in enumerate(self.tasks.step())]
        return start_sampling(self.cluster.generators, requests, sampling_seed(self.config.seed, "rollout", step))

    def learn(self, step: int, sampled: Sampled) -> dict[str, float]:
        """Credit, batch, optimiser steps; returns the step's metrics. In rounds most steps only grow the data set."""
        config, groups = self.config, sampled.groups
        self.episodes += sum(len(group.trajectories) for group in groups)
        self.failures.report(f"step {step}", sampled.failures)
        metrics = reduce_metrics(sampled.metrics) | summary_metrics(groups, config.env.spec.metrics)
        metrics |= rollout_metrics(groups, sampled.failures, metrics["time/play_s"]) | self.tasks.observe(groups)
        if config.cluster.max_lag == 0:
            check_versions(groups, self.version)
        with self.timed("generate"):
            groups, remedied = self.remedies.apply(step, groups)
        metrics |= remedied
        self.episodes += int(remedied.get("rollout/resampled_episodes", 0))
        if self.rounds is not None:
            return metrics | self.grow(self.rounds, step, groups)
        judged = self.judge(groups) if self.plan.needs_judgement else None
        with self.timed("credit"):
            steps, baseline, parts = optimizer_steps(
                groups,
                self.plan,
                ranks=config.cluster.learners,
                micro_batch_tokens=config.learner.micro_batch_tokens,
                generation_limit=config.generation_limit,
                baseline_state=self.baseline,
                current_version=self.version,
                minibatches=config.learner.minibatches,
                epochs=config.learner.epochs,
                judged=judged,
            )
        self.write_trajectories(step, groups, judged)
        self.baseline = baseline
        with self.timed("learn"):
            ranks = self.cluster.learn_each([[s.micro_batches[rank] for s in steps] for rank in range(config.cluster.learners)])
        metrics |= reduce_metrics([parts]) | learner_metrics(ranks)
        check_gap(metrics, config.learner.max_logprob_gap)
        self.moved = True
        return metrics

    def grow(self, rounds: Rounds, step: int, groups: list[Group]) -> dict[str, float]:
        """Add a step's groups to the data set, and improve on it if they end a round; returns metrics."""
        self.write_trajectories(step, groups)
        metrics = rounds.grow(step, groups)
        with self.timed("learn"):
            improved = rounds.improve(step, self.version) if rounds.ends(step) else {}
        if improved:
            check_gap(improved, self.config.learner.max_logprob_gap)
        self.moved = bool(improved)
        return metrics | improved

    def write_trajectories(self, step: int, groups: list[Group], judged: list[Judgement] | None = None) -> None:
        """Keep the transcripts of a step, with their credit, if it is the turn of one."""
        if step in (1, self.config.steps) or step % self.config.output.trajectories_every == 0:
            self.folder.write_trajectories(step, groups, credit(groups, self.plan, self.baseline, judged), self.encoder)

    def judge(self, groups: list[Group]) -> list[Judgement]:
        """Ask the learner for values and reference log-probs of every sampled token, one answer an episode."""
        episodes = [episode for group in groups for episode in group.trajectories]
        rows, masks = [episode.token_ids for episode in episodes], [episode.action_mask for episode in episodes]
        with self.timed("learn"):
            shares = self.cluster.learn(lambda rank: rank.judge.remote(rows, masks), "judging the samples")
        judged = {number: one for share in shares for number, one in share.items()}
        return [judged[number] for number in range(len(episodes))]

    def push(self) -> dict[str, float]:
        """Push the weights as a new version, and prove that they arrived."""
        self.version += 1
        return reduce_metrics(self.cluster.push(self.version)[:1]) | self.attest()

    def attest(self) -> dict[str, float]:
        """Compare generators and learner on the probe; raises if they differ."""
        begun = time.perf_counter()
        self.attested = attest(self.cluster, self.probe, self.version, self.attested)
        self.worst_gap = max(self.worst_gap, self.attested.max_abs_diff)
        return {
            "sync/probe_max_abs_diff": self.attested.max_abs_diff,
            "sync/probe_moved": self.attested.moved,
            "time/attest_s": time.perf_counter() - begun,
        }

    def evaluate(self, step: int) -> dict[str, float]:
        """Success on all evaluation tasks, sampled and greedy, by level, and the memory that the run has taken so far."""
        config = self.config
        seed = sampling_seed(config.seed, step)
        played = evaluate(self.cluster.generators, self.eval_tasks, config, samples=config.eval.samples, seed=seed)
        self.failures.report(f"evaluating after step {step}", played.failures)
        return eval_metrics(played.sampled, played.greedy, played.failures) | memory_metrics(os.getpid())

    def export(self, step: int) -> None:
        """Write the policy as a Hugging Face folder."""
        self.cluster.learn(lambda rank: rank.export.remote(self.folder.checkpoint(step)), "exporting the policy")

    def summary(self, before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, Any]:
        """What `summary.json` says."""
        return {
            "method": self.config.algorithm.method,
            "seed": self.config.seed,
            **after,
            **{f"{name}_before": value for name, value in before.items() if name.split("/")[1] in ("success", "success_greedy")},
            "env/best_success": self.config.env.spec.best_success(self.config.env_params),
            "train_seconds": seconds,
            "steps": self.config.steps,
            "episodes": self.episodes,
            "sync/probe_max_abs_diff_worst": self.worst_gap,
        }

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the body's seconds to the step's clock under `name`."""
        begun = time.perf_counter()
        yield
        self.clock[name] = self.clock.get(name, 0.0) + time.perf_counter() - begun
