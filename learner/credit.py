"""Credit: how good each sampled action was, in float64.

    credit_it = (return_it - baseline_it) / scale_i

Shape suffixes: `_G` siblings of one group, `_T` sampled tokens of one trajectory. Without a learned value or a KL in the reward
every token of a turn has the same credit.
A group without a signal is found by comparing raw values (`max == min`), never by a small standard deviation: eight
rewards of 0.7 have a float32 deviation of 1e-8, and dividing by it makes an advantage of about one from rounding alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from envs.errors import InputError
from learner.plan import Plan
from learner.returns import token_returns, values_of
from learner.types import FloatArray, Judgement
from rollout.types import Group, Trajectory


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


def credit(groups: Sequence[Group], plan: Plan, state: BaselineState, judged: Sequence[Judgement] | None = None) -> list[FloatArray]:
    """Credit of every sampled token: one array `(T,)` a trajectory, in the order of the groups and their members.

        group_mean     R_i - mean_j R_j              leave_one_out  R_i - mean_(j != i) R_j
        alive          R_it - mean over the OTHER siblings that still play at turn t (0 when none does)
        value          return - V(h_t)               constant, moving_average     return - b

    With scale `std` the result is divided by the group's population or sample standard deviation; nothing is added to it. With
    `whiten` the credit of the whole batch is shifted and scaled to mean 0 and std 1 over its tokens. `judged` is what
    `Learner.judge` said, one an episode; plans with a learned value or a KL in the reward need it.
    Sources: Williams 1992 (constant), Kool et al. 2019 (leave one out), Shao et al. 2024, section 4.1.2 (group mean and std),
    Sutton et al. 2000 (value). Raises `InputError`, naming task, group and member, for a group baseline on a group of one, a
    missing judgement and credit that is not finite.
    Degenerates: all rewards (for `alive`: rewards-to-go of a turn) equal gives credit exactly 0.
    """
    credit_of: list[FloatArray] = []
    for group, group_judged in zip(groups, by_group(groups, judged), strict=True):
        if plan.needs_group and len(group.trajectories) < 2:
            raise InputError(
                f"{_name(group.trajectories[0])}: baseline {plan.baseline} compares siblings, but the group has one member; "
                "expected two or more: set group_size to 2 or more, or use a method without a group baseline"
            )
        for trajectory, credit_T in zip(group.trajectories, _group_credit(group, plan, state, group_judged), strict=True):
            if not np.isfinite(credit_T).all():
                bad = credit_T[~np.isfinite(credit_T)][0]
                raise InputError(f"{_name(trajectory)}: credit {bad} is not finite; expected rewards far below 1e308: rescale them")
            credit_of.append(credit_T)
    return _whiten(credit_of) if plan.config.whiten else credit_of


def by_group(groups: Sequence[Group], judged: Sequence[Judgement] | None) -> list[list[Judgement | None]]:
    """The judgements of each group's members; None for each if there are none."""
    rest: Iterator[Judgement | None] = iter(judged if judged is not None else [None] * sum(len(group.trajectories) for group in groups))
    result = [[next(rest) for _ in group.trajectories] for group in groups]
    assert next(rest, None) is None, "more judgements than trajectories"
    return result


def _group_credit(group: Group, plan: Plan, state: BaselineState, judged: Sequence[Judgement | None]) -> list[FloatArray]:
    members = list(zip(group.trajectories, judged, strict=True))
    returns = [token_returns(trajectory, plan, one) for trajectory, one in members]
    match plan.baseline:
        case "none":
            return returns
        case "constant":
            return [return_T - plan.config.baseline_constant for return_T in returns]
        case "moving_average":
            return [return_T - state.value for return_T in returns]
        case "value":
            return [return_T - values_of(trajectory, plan, one) for return_T, (trajectory, one) in zip(returns, members, strict=True)]
        case "alive":
            return _alive_credit(group, returns)
        case "group_mean" | "leave_one_out":
            assert plan.returns == "reward", "a trajectory-level baseline under a turn-level return is refused by resolve"
            centred = _centre([float(return_T[0]) for return_T in returns], leave_one_out=plan.baseline == "leave_one_out")
            if plan.scale == "std":
                centred = _standardise(centred, ddof=1 if plan.config.std == "sample" else 0)
            return [np.full(len(return_T), value) for value, return_T in zip(centred, returns, strict=True)]


def _alive_credit(group: Group, returns: Sequence[FloatArray]) -> list[FloatArray]:
    """The alive baseline turn by turn; every token of a turn has the same return."""
    lengths = [[len(turn.token_ids) for turn in trajectory.turns] for trajectory in group.trajectories]
    # A turn without a token has a return, but no token to read it from; it is the one of the token after it, or of the last.
    by_turn = [
        [float(return_T[min(start, len(return_T) - 1)]) for start in np.cumsum([0, *sizes[:-1]])]
        for sizes, return_T in zip(lengths, returns, strict=True)
    ]
    return [np.repeat(np.array(values), sizes) for values, sizes in zip(_centre_alive(by_turn), lengths, strict=True)]


def _whiten(credits: list[FloatArray]) -> list[FloatArray]:
    whole = np.concatenate(credits)
    if whole.max() == whole.min():
        return [np.zeros_like(credit_T) for credit_T in credits]
    return [(credit_T - whole.mean()) / whole.std() for credit_T in credits]


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
