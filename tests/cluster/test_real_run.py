"""Whole runs on real parts: Ray actors, vLLM, DeepSpeed, the weight push, on the CPU."""

import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from cluster import actors
from cluster.actors import RunError, running
from cluster.attest import AttestationError, max_abs_diff
from cluster.config import RunConfig
from cluster.live import LiveView
from cluster.load_config import load_config
from cluster.loop import Training, train
from cluster.prepare import prepare_model
from cluster.run_folder import RunFolder
from cluster.sample import finish_sampling
from cluster.sinks import read_metrics
from cluster.transcripts import read_trajectories
from tests.cluster import hanging
from tests.cluster.processes import alive, left, marked
from tests.cluster.saboteur import Fault, Saboteur

TINY = (
    "model.tiny.hidden_size=64",
    "model.tiny.layers=2",
    "model.tiny.heads=2",
    "model.tiny.kv_heads=1",
    "model.tiny.intermediate_size=128",
    "cold_start.episodes=0",
    "rollout.groups_per_step=4",
    "rollout.group_size=4",
    "eval.samples=1",
    "generator.kv_cache_gib=0.05",
    "cluster.learner_threads=1",
)


def tiny(*overrides: str) -> RunConfig:
    return load_config("number-search-tiny", [*TINY, *overrides])


def quiet(steps: int) -> LiveView:
    return LiveView(steps, title="test", console=Console(file=io.StringIO()))


class Live:
    """A run of two generators and two learner ranks that goes on as long as the tests want, step by step."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        # An untrained policy never succeeds, so that only the entropy bonus moves it.
        self.config = tiny("cluster.generators=2", "cluster.learners=2", "learner.zero_stage=2", "steps=2", "algorithm.entropy_coef=0.1")
        self.mark = stack.enter_context(marked())
        self.stack = stack.enter_context(ExitStack())
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(actors, "LearnerRank", Saboteur)
        folder = RunFolder.create(path, self.config, overwrite=False)
        model = prepare_model(self.config, path)
        self.cluster = self.stack.enter_context(running(self.config, model))
        sink = self.stack.enter_context(folder.sink(self.config))
        self.training = Training(self.config, folder, quiet(2), self.cluster, sink, model)
        self.training.start()

    def learn(self) -> None:
        training = self.training
        with training.timed("generate"):
            sampled = finish_sampling(training.sample(1), self.config, "sampling")
        training.learn(1, sampled)

    def sabotage(self, fault: Fault) -> None:
        self.cluster.learn(lambda rank: rank.sabotage.remote(fault), "sabotage")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(tmp_path_factory.mktemp("live") / "run", stack)


def test_every_generator_is_the_learner_after_every_push(live: Live) -> None:
    training = live.training
    first = training.attested
    summary = training.rl()
    last = training.attested
    assert first is not None and last is not None
    assert (first.version, last.version, summary["steps"]) == (0, 2, 2)
    assert max_abs_diff(first.learner, last.learner) > 1e-4, "nothing is proven by weights that stay"
    assert max_abs_diff(last.generators[0], last.generators[1]) < 1e-6
    assert max(max_abs_diff(last.learner, scores) for scores in last.generators) < 1e-5
    assert 0 < summary["sync/probe_max_abs_diff_worst"] < 1e-5
    ranks = live.cluster.learn(lambda rank: rank.score.remote(training.probe), "scoring")
    assert ranks[0] == ranks[1]


@pytest.mark.parametrize(
    ("fault", "reason"), [("flip", "generator 0 is not the learner: after push"), ("skip", "generator 0 kept its old weights: after push")]
)
def test_a_push_that_goes_wrong_stops_the_run(live: Live, fault: Fault, reason: str) -> None:
    live.learn()
    live.sabotage(fault)
    with pytest.raises(AttestationError, match=reason):
        live.training.push()
    live.sabotage("none")
    live.training.push()


def test_a_killed_generator_is_a_clear_error_and_nothing_is_left_behind(live: Live) -> None:
    victim = next(process for process in alive(live.mark) if process.cmdline()[0].startswith("ray::Generator"))
    victim.kill()
    begun = time.monotonic()
    with pytest.raises(RunError, match="sampling: a process died"):
        live.learn()
    assert time.monotonic() - begun < 30
    assert len(alive(live.mark)) > 3
    live.stack.close()
    assert left(live.mark) == []


def test_a_hanging_environment_costs_its_group_and_not_the_step(tmp_path: Path) -> None:
    config = tiny(
        f"env.name={hanging.NAME}", "env.params={}", "cluster.env_workers=1", "cluster.env_deadline_s=1", "steps=2", "eval.every=2"
    )
    with marked() as mark:
        train(config, RunFolder.create(tmp_path / "run", config, overwrite=False), quiet(2))
        assert left(mark) == []
    steps = read_metrics(tmp_path / "run")
    assert [step["groups/failed"] for step in steps[1:]] == [1.0, 1.0]
    assert [step["failure/timed_out"] for step in steps[1:]] == [1.0, 1.0]
    assert all(step["time/environment_s"] > 1.0 for step in steps[1:])
    tasks = {row["task"] for row in read_trajectories(tmp_path / "run" / "trajectories" / "1.jsonl")}
    assert tasks == {f"hanging/{number}" for number in range(hanging.TASKS) if number != hanging.HANGS}
