"""Rounds: a data set of own samples that grows by sampling, and the batches that the policy improves on. Pure functions.

    grow      sample, score, and add what passes the filter            D <- D + {y : R(y) >= threshold}
    improve   imitate {y in D : R(y) >= threshold}, then again with each higher threshold

Sources: Gulcehre et al. 2023 (ReST, arXiv 2308.08998), algorithm 1; Singh et al. 2023 (ReST-EM, arXiv 2312.06585), algorithm 1, where D
is the newest round's and the policy starts again from the base; the bound on one task's episodes is theirs too.
Simplifications: D holds own samples only (demonstrations are for the cold start), an improve phase has a fixed number of passes instead
of stopping by an evaluation, and the first threshold is a setting, where ReST wants it above the policy's mean reward.
The data set is a sequence of groups of one episode, oldest first. No drift corrects an older sampler: to imitate is the aim.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from learner.config import GrowConfig
from learner.plan import Plan, resolve
from learner.returns import keeps
from rollout.types import Group


def kept(groups: Sequence[Group], plan: Plan) -> list[Group]:
    """The episodes that the plan's filter lets through, each as a group of one, in order."""
    return [
        Group(trajectories=(replace(trajectory, member=0),))
        for group in groups
        for trajectory in group.trajectories
        if keeps(plan, trajectory)
    ]


def added(data: Sequence[Group], new: Sequence[Group], grow: GrowConfig) -> tuple[Group, ...]:
    """The data set with `new` at its end; what is more than `max_episodes` leaves at its beginning."""
    whole = (*data, *new)
    return whole[max(0, len(whole) - grow.max_episodes) :] if grow.max_episodes else whole


def raised(plan: Plan, grow: GrowConfig) -> list[Plan]:
    """The plan of each pass of an improve phase: its own filter, then one with each higher threshold."""
    later = [resolve(plan.config.model_copy(update={"filter_threshold": threshold})) for threshold in grow.raise_to]
    return [plan, *later]


def learned_from(data: Sequence[Group], plan: Plan, grow: GrowConfig) -> list[Group]:
    """What of the data set passes the plan's filter, no more than the newest `max_per_task` episodes of each task; in order."""
    taken: Counter[str] = Counter()
    chosen = []
    for one in reversed(data):
        if keeps(plan, one.trajectories[0]) and (grow.max_per_task is None or taken[one.task.id] < grow.max_per_task):
            taken[one.task.id] += 1
            chosen.append(one)
    return chosen[::-1]


def shuffled_batches(groups: Sequence[Group], *, epochs: int, size: int, seed: int) -> list[list[Group]]:
    """Batches of at most `size` groups, of nearly equal size, that contain every group once an epoch, in a new order each time."""
    shuffle = random.Random(seed)
    batches = []
    for _ in range(epochs if groups else 0):
        order = shuffle.sample(list(groups), len(groups))
        even = math.ceil(len(order) / math.ceil(len(order) / size))
        batches += [order[i : i + even] for i in range(0, len(order), even)]
    return batches
