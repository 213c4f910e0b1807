"""Imitation of a fixed set of episodes, whoever played them: the optimiser steps of a cold start and of an improve phase."""

from collections.abc import Callable, Sequence

from cluster.actors import Cluster
from cluster.measure import learner_metrics
from envs.metrics import Metric
from learner.batch import optimizer_steps
from learner.credit import initial_baseline
from learner.plan import Plan
from rollout.types import Group

_STEPS_A_CALL = 8


def imitate(
    cluster: Cluster,
    batches: Sequence[tuple[Plan, Sequence[Group]]],
    *,
    version: int | None = None,
    done: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """One optimiser step a batch, weighed by its plan, in the phase that the learner has begun; returns the metrics over all steps.

    `version` is that of the weights before the first step: with its own samples the learner must agree. `done` is told how many
    steps are behind.
    """
    config, by_rank = cluster.config, [list[dict[str, Metric]]() for _ in cluster.learners]
    for first in range(0, len(batches), _STEPS_A_CALL):
        steps = []
        for number, (plan, groups) in enumerate(batches[first : first + _STEPS_A_CALL], first):
            (step,), _, _ = optimizer_steps(
                groups,
                plan,
                ranks=config.cluster.learners,
                micro_batch_tokens=config.learner.micro_batch_tokens,
                generation_limit=config.generation_limit,
                baseline_state=initial_baseline(plan),
                current_version=version if number == 0 else None,
            )
            steps.append(step)
        ranks = cluster.learn_each([[step.micro_batches[rank] for step in steps] for rank in range(config.cluster.learners)])
        for collected, new in zip(by_rank, ranks, strict=True):
            collected += new
        if done is not None:
            done(first + len(steps))
    return learner_metrics(by_rank)
