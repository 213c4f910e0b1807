"""Sampling on the generators: groups are dealt out whole, so that siblings share one engine's prefix cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.actors import RunError, wait
from cluster.config import RunConfig
from cluster.measure import split
from envs.contract import Task
from envs.metrics import Metric
from rollout.generator import GroupRequest
from rollout.play import GroupFailure, sampling_seed
from rollout.types import Group


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What an evaluation played: one group a task of samples and of greedy episodes, in the order of the tasks, and what failed."""

    sampled: list[Group]
    greedy: list[Group]
    failures: list[GroupFailure]


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What came back: whole groups in the order of the requests, failed groups, and the generators' own metrics."""

    groups: list[Group]
    failures: list[GroupFailure]
    metrics: list[dict[str, Metric]]


def start_sampling(generators: Sequence[Any], requests: Sequence[GroupRequest], seed: int) -> list[Any]:
    """Ask every generator for its share of the groups; returns at once, with one remote call a generator."""
    shares = [list(requests[i :: len(generators)]) for i in range(len(generators))]
    return [generator.play.remote(share, seed) for generator, share in zip(generators, shares, strict=True)]


def collect_samples(calls: Sequence[Any], config: RunConfig, what: str) -> Sampled:
    """Wait for `start_sampling`."""
    answers = wait(calls, config.cluster.step_timeout_s, what)
    results = [result for answer, _ in answers for result in answer]
    groups, failures = split(sorted(results, key=lambda result: _number(result)))
    return Sampled(groups=groups, failures=failures, metrics=[metrics for _, metrics in answers])


def finish_sampling(calls: Sequence[Any], config: RunConfig, what: str) -> Sampled:
    """`collect_samples`. Raises `RunError` if not one group survived its environment's failures."""
    sampled = collect_samples(calls, config, what)
    if not sampled.groups:
        failures, first = sampled.failures, sampled.failures[0]
        raise RunError(
            f"{what}: the environment failed in every one of {len(failures)} groups; the first failure is {first.kind}: {first.message} "
            f"(task {first.task.id}). Check the environment with envs.check.check_env"
        )
    return sampled


def _number(result: Group | GroupFailure) -> int:
    return result.group if isinstance(result, GroupFailure) else result.trajectories[0].group


def evaluate(
    generators: Sequence[Any], tasks: Sequence[Task], config: RunConfig, *, samples: int, seed: int, greedy: bool = True
) -> Evaluated:
    """Play every task `samples` times at the training temperature, and once greedily.

    Sample j uses the same noise on every task, so it is one deterministic policy: where the tasks are exhaustive, no luck can
    lift the measured success above that of the best policy.
    """
    requests = [GroupRequest(task=task, group=number, size=samples, common_noise=True) for number, task in enumerate(tasks) if samples]
    if greedy:
        requests += [GroupRequest(task=task, group=len(tasks) + number, size=1, temperature=0.0) for number, task in enumerate(tasks)]
    sampled = finish_sampling(start_sampling(generators, requests, sampling_seed(seed, "eval")), config, "evaluating")
    return Evaluated(
        sampled=[group for group in sampled.groups if group.trajectories[0].group < len(tasks)],
        greedy=[group for group in sampled.groups if group.trajectories[0].group >= len(tasks)],
        failures=sampled.failures,
    )
