"""Credit: how good each sampled action was, in float64.

    credit_it = (return_it - baseline_it) / scale_i

Shape suffixes: `_G` siblings of one group, `_T` sampled tokens of one trajectory. Every token of a turn has the same credit.
A group without a signal is found by comparing raw values (`max == min`), never by a small standard deviation: eight
rewards of 0.7 have a float32 deviation of 1e-8, and dividing by it makes an advantage of about one from rounding alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from learner.methods import Returns
from learner.plan import Plan
from rollout.types import Group, Trajectory

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BaselineState:
    """What the `moving_average` baseline remembers between batches; a checkpoint stores it. Other baselines ignore it."""

    value: float


def initial_baseline(plan: Plan) -> BaselineState:
    """The state before the first batch: the config's `baseline_constant`."""
    return BaselineState(value=plan.config.baseline_constant)


def update_baseline(state: BaselineState, groups: Sequence[Group], plan: Plan) -> BaselineState:
    """The state after a batch: `b <- decay * b + (1 - decay) * mean(R)`.

    Call it after `credit` scored the same batch: a baseline that contains the sample it scores is biased.
    """
    if plan.baseline != "moving_average":
        return state
    rewards = [reward for group in groups for reward in group.rewards]
    decay = plan.config.baseline_decay
    return BaselineState(value=decay * state.value + (1 - decay) * sum(rewards) / len(rewards))


def credit(groups: Sequence[Group], plan: Plan, state: BaselineState) -> list[FloatArray]:
    """Credit of every sampled token: one array `(T,)` a trajectory, in the order of the groups and their members.

        group_mean     R_i - mean_j R_j              leave_one_out  R_i - mean_(j != i) R_j
        alive          R_it - mean over the OTHER siblings that still play at turn t (0 when none does)
        constant, moving_average     return - b

    With scale `std` the result is divided by the group's population or sample standard deviation; nothing is added to it.
    Sources: Williams 1992 (constant), Kool et al. 2019 (leave one out), Shao et al. 2024, section 4.1.2 (group mean and std).
    Raises `InputError`, naming task, group and member, for a group baseline on a group of one and for credit that is not finite.
    Degenerates: all rewards (for `alive`: rewards-to-go of a turn) equal gives credit exactly 0.
    """
    credit_of = []
    for group in groups:
        if plan.needs_group and len(group.trajectories) < 2:
            raise InputError(
                f"{_name(group.trajectories[0])}: baseline {plan.baseline} compares siblings, but the group has one member; "
                "expected two or more: set group_size to 2 or more, or use a method without a group baseline"
            )
        for trajectory, turn_credit in zip(group.trajectories, _turn_credit(group, plan, state), strict=True):
            if not all(map(math.isfinite, turn_credit)):
                raise InputError(f"{_name(trajectory)}: credit {turn_credit} is not finite; expected rewards far below 1e308: rescale them")
            credit_of.append(np.repeat(np.array(turn_credit, dtype=np.float64), [len(turn.token_ids) for turn in trajectory.turns]))
    return credit_of


def _turn_credit(group: Group, plan: Plan, state: BaselineState) -> list[list[float]]:
    returns = [_returns(trajectory, plan.returns) for trajectory in group.trajectories]
    match plan.baseline:
        case "none":
            return returns
        case "constant":
            return [[value - plan.config.baseline_constant for value in values] for values in returns]
        case "moving_average":
            return [[value - state.value for value in values] for values in returns]
        case "alive":
            return _centre_alive(returns)
        case "group_mean" | "leave_one_out":
            assert plan.returns == "reward", "a trajectory-level baseline under a turn-level return is refused by resolve"
            centred = _centre(group.rewards, leave_one_out=plan.baseline == "leave_one_out")
            if plan.scale == "std":
                centred = _standardise(centred, ddof=1 if plan.config.std == "sample" else 0)
            return [[value] * len(values) for value, values in zip(centred, returns, strict=True)]


def _returns(trajectory: Trajectory, returns: Returns) -> list[float]:
    if returns == "one":
        return [1.0] * len(trajectory.turns)
    if returns == "reward":
        assert trajectory.reward is not None, "a group holds scored trajectories only"
        return [trajectory.reward] * len(trajectory.turns)
    to_go, total = [], 0.0
    for turn in reversed(trajectory.turns):
        total += turn.reward
        to_go.append(total)
    return to_go[::-1]


def _centre(values_G: Sequence[float], *, leave_one_out: bool) -> list[float]:
    """Each value minus the mean of all, or of the others: `x - mean_others = (x - mean_all) * G / (G - 1)`."""
    if max(values_G) == min(values_G):
        return [0.0] * len(values_G)
    size = len(values_G)
    mean = sum(values_G) / size
    factor = size / (size - 1) if leave_one_out else 1.0
    return [(value - mean) * factor for value in values_G]


def _standardise(centred_G: list[float], *, ddof: int) -> list[float]:
    largest = max(map(abs, centred_G))
    if largest == 0:
        return centred_G
    # Divided by the largest first, so that the squares of tiny differences cannot underflow to a deviation of 0.
    unit = [value / largest for value in centred_G]
    std = math.sqrt(sum(value * value for value in unit) / (len(unit) - ddof))
    return [value / std for value in unit]


def _centre_alive(returns: list[list[float]]) -> list[list[float]]:
    result: list[list[float]] = [[] for _ in returns]
    for turn in range(max(map(len, returns))):
        alive = [member for member, values in enumerate(returns) if len(values) > turn]
        values = [returns[member][turn] for member in alive]
        for member, value in zip(alive, _centre(values, leave_one_out=True) if len(alive) > 1 else values, strict=True):
            result[member].append(value)
    return result


def _name(trajectory: Trajectory) -> str:
    return f"task {trajectory.task.id}, group {trajectory.group}, member {trajectory.member}"
