"""1/Z: computed once per optimiser step over all its groups, and folded into the weights.

No loss has a denominator, so no split into ranks or micro-batches can change it.
"""

import math
from collections.abc import Sequence

from learner.plan import Plan
from learner.returns import keeps
from rollout.types import Group


def inverse_z(groups: Sequence[Group], plan: Plan, generation_limit: int) -> list[float]:
    """1/Z of the sampled tokens of each trajectory, in the order of the groups and their members.

        constant     N * C             N episodes; C = the config's generation_limit, or the argument (tokens) when that is None
        token        sum_i |y_i|       all sampled tokens
        own_length   n * G * |y_i|     mean over own tokens, mean over the G siblings, mean over the n groups
        group        n * G             sum over tokens, mean over siblings, mean over groups
        kept         sum_kept |y_i|    sampled tokens of the episodes that pass the filter; the others' 1/Z is 0

    `groups` are ALL groups of the optimiser step. With `count_dead_groups` false, groups with equal rewards are treated as if
    they were not there: they are in no count and their 1/Z is 0, so that neither KL nor entropy acts on them.
    Sources: constant Liu et al. 2025, section 3.2; own_length Shao et al. 2024, equation 3; token Yu et al. 2025 (DAPO).
    Degenerates: when no group counts or nothing is kept, every 1/Z is 0 and the step has no gradient.
    """
    counted = [plan.config.count_dead_groups or not group.dead for group in groups]
    kept = [group for group, counts in zip(groups, counted, strict=True) if counts]
    if not kept:
        return [0.0 for group in groups for _ in group.trajectories]
    episodes = sum(len(group.trajectories) for group in kept)
    tokens = sum(trajectory.sampled_tokens for group in kept for trajectory in group.trajectories)
    kept_tokens = sum(t.sampled_tokens for group in kept for t in group.trajectories if plan.normaliser == "kept" and keeps(plan, t))
    limit = plan.config.generation_limit or generation_limit
    assert limit >= 1, f"the generation limit is {limit} tokens"
    result: list[float] = []
    z: float
    for group, counts in zip(groups, counted, strict=True):
        for trajectory in group.trajectories:
            match plan.normaliser:
                case "constant":
                    z = episodes * limit
                case "token":
                    z = tokens
                case "kept":
                    # A token that is not kept has no share of the mean: its 1/Z is 0, whatever would be added to its weight.
                    z = kept_tokens if keeps(plan, trajectory) else math.inf
                case "own_length":
                    z = len(kept) * len(group.trajectories) * trajectory.sampled_tokens
                case "group":
                    z = len(kept) * len(group.trajectories)
            result.append(1 / z if counts else 0.0)
    return result
