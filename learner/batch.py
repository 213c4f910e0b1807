"""From groups to optimiser steps: credit and 1/Z are laid on the tokens, rows are packed and dealt to the ranks.

Shape suffixes: `_B` rows, `_T` padded token positions. How rows are split changes memory and time, never the gradient: 1/Z is
already in `inverse_z_BT`, so that the gradient of a step is the plain sum over its micro-batches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envs.errors import InputError
from envs.metrics import Metric
from learner.choices import FILTERS
from learner.credit import BaselineState, by_group, credit, update_baseline
from learner.deal import deal
from learner.normalise import inverse_z
from learner.plan import Plan
from learner.returns import keeps, token_returns, values_of
from learner.types import FloatArray, Judgement, MicroBatch, OptimizerStep
from rollout.types import Group, Trajectory


@dataclass(frozen=True, kw_only=True)
class _Row:
    trajectory: Trajectory
    credit_T: FloatArray
    inverse_z: float
    value_target_T: FloatArray | None = None
    value_old_T: FloatArray | None = None

    @property
    def length(self) -> int:
        return len(self.trajectory.token_ids)


def optimizer_steps(
    groups: Sequence[Group],
    plan: Plan,
    *,
    ranks: int,
    micro_batch_tokens: int,
    generation_limit: int,
    baseline_state: BaselineState,
    current_version: int | None,
    minibatches: int = 1,
    epochs: int = 1,
    credit_override: Sequence[FloatArray] | None = None,
    judged: Sequence[Judgement] | None = None,
) -> tuple[list[OptimizerStep], BaselineState, dict[str, Metric]]:
    """The optimiser steps of one batch of groups, the baseline for the next batch, and metrics.

    The groups are cut, in the given order, into `minibatches` parts that differ by at most one group (fewer
    parts if there are fewer groups); each part is one optimiser step with a Z of its own,
    and all of them are repeated `epochs` times. `micro_batch_tokens` bounds rows x longest row, padding included (see `deal`).
    `generation_limit` (tokens) is C where the config names none. `credit_override` replaces `credit`: one array a trajectory, over its
    sampled tokens. `judged` is what `Learner.judge` said, one an episode; a plan with
    `needs_judgement` needs it. Only the first step can be on-policy: after it the weights are newer than `current_version`; None if
    they are newer already. Rows whose weight is 0 whatever the policy becomes are left out, because they cannot change the gradient.
    Raises `InputError` without a group, or if `judged` is needed and missing.
    """
    if not groups:
        raise InputError("got no groups to learn from; expected at least one: look at groups/failed, every environment may have failed")
    credits = credit(groups, plan, baseline_state, judged) if credit_override is None else credit_override
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert len(credits) == len(trajectories), f"{len(credits)} credits for {len(trajectories)} trajectories"
    values = _values(groups, plan, judged)
    count = min(minibatches, len(groups))
    bounds = [part * len(groups) // count for part in range(count + 1)]
    parts: list[list[_Row]] = []
    taken = 0
    for first, end in pairwise(bounds):
        scales = inverse_z(groups[first:end], plan, generation_limit)
        span = slice(taken, taken + len(scales))
        taken += len(scales)
        rows = zip(trajectories[span], credits[span], scales, values[span], strict=True)
        parts.append(
            [
                _Row(trajectory=trajectory, credit_T=credit_T, inverse_z=scale, value_target_T=target_T, value_old_T=old_T)
                for trajectory, credit_T, scale, (target_T, old_T) in rows
            ]
        )
    pull = plan.kl_in_gradient or plan.config.entropy_coef > 0 or plan.needs_value
    trained = [[row for row in part if row.inverse_z > 0 and (pull or row.credit_T.any())] for part in parts]
    steps = [
        _step(part, ranks, micro_batch_tokens, current_version if number == 0 else None) for number, part in enumerate(trained * epochs)
    ]
    metrics = _metrics(groups, credits, baseline_state, plan)
    if plan.needs_value:
        metrics |= _value_metrics(values)
    metrics["batch/padding"] = Metric(value=sum(step.padding_fraction for step in steps) / len(steps), weight=len(trajectories))
    metrics["batch/trained_fraction"] = Metric(value=sum(map(len, trained)) / len(trajectories), weight=len(trajectories))
    return steps, update_baseline(baseline_state, groups, plan), metrics


def _metrics(groups: Sequence[Group], credits: Sequence[FloatArray], state: BaselineState, plan: Plan) -> dict[str, Metric]:
    size = np.abs(np.concatenate(credits))
    metrics = {
        "batch/dead_fraction": Metric(value=sum(group.dead for group in groups) / len(groups), weight=len(groups)),
        "batch/credit_abs_mean": Metric(value=float(size.mean()), weight=size.size),
    }
    if plan.returns in FILTERS:
        kept = [keeps(plan, trajectory) for group in groups for trajectory in group.trajectories]
        metrics["batch/kept_fraction"] = Metric(value=sum(kept) / len(kept), weight=len(kept))
    if plan.baseline == "moving_average":
        metrics["batch/baseline"] = Metric(value=state.value)
    return metrics


_Values = list[tuple[FloatArray | None, FloatArray | None]]


def _values(groups: Sequence[Group], plan: Plan, judged: Sequence[Judgement] | None) -> _Values:
    """What V should have said and what it said of each trajectory; (None, None) for each if the plan learns no value."""
    members = [
        (trajectory, one)
        for group, group_judged in zip(groups, by_group(groups, judged), strict=True)
        for trajectory, one in zip(group.trajectories, group_judged, strict=True)
    ]
    if not plan.needs_value:
        return [(None, None)] * len(members)
    return [(token_returns(trajectory, plan, one), values_of(trajectory, plan, one)) for trajectory, one in members]


def _value_metrics(values: _Values) -> dict[str, Metric]:
    """`1 - Var(target - V) / Var(target)`: 1 is a perfect V, 0 no better than a constant; left out if all targets are equal."""
    target, old = (np.concatenate([one for one in column if one is not None]) for column in zip(*values, strict=True))
    metrics = {"value/mean": Metric(value=float(old.mean()), weight=old.size)}
    if target.max() > target.min():
        metrics["value/explained_variance"] = Metric(value=float(1 - (target - old).var() / target.var()), weight=old.size)
    return metrics


def _step(rows: list[_Row], ranks: int, budget: int, version: int | None) -> OptimizerStep:
    dealt = deal([row.length for row in rows], ranks=ranks, budget=budget)
    parts = [[[rows[number] for number in numbers] for numbers in mine] for mine in dealt]
    laid = sum(len(part) * part[0].length for mine in parts for part in mine if part)
    return OptimizerStep(
        micro_batches=tuple(tuple(_micro_batch(part, version) if part else _empty() for part in mine) for mine in parts),
        padding_fraction=1 - sum(row.length for row in rows) / laid if laid else 0.0,
    )


def _micro_batch(rows: list[_Row], version: int | None) -> MicroBatch:
    lengths = np.array([row.length for row in rows])
    present_BT = np.arange(lengths[0]) < lengths[:, None]
    mask_BT = _lay(chain.from_iterable(row.trajectory.action_mask for row in rows), present_BT, np.bool_)
    turns = [(row.trajectory, turn) for row in rows for turn in row.trajectory.turns]
    fresh = [not episode.departures and turn.first_version == turn.last_version == version for episode, turn in turns]

    def tokens(values: Sequence[FloatArray | None]) -> torch.Tensor | None:
        present = [values_T for values_T in values if values_T is not None]
        if not present:
            return None
        laid_BT = np.zeros(mask_BT.shape)
        laid_BT[mask_BT] = np.concatenate(present)
        return torch.from_numpy(laid_BT)

    credit_BT = tokens([row.credit_T for row in rows])
    assert credit_BT is not None
    on_policy_BT = np.zeros(mask_BT.shape, dtype=np.bool_)
    on_policy_BT[mask_BT] = np.repeat(fresh, [len(turn.token_ids) for _, turn in turns])
    return MicroBatch(
        token_ids_BT=torch.from_numpy(_lay(chain.from_iterable(row.trajectory.token_ids for row in rows), present_BT, np.int64)),
        mask_BT=torch.from_numpy(mask_BT),
        credit_BT=credit_BT,
        inverse_z_BT=torch.from_numpy(mask_BT * np.array([row.inverse_z for row in rows])[:, None]),
        logp_old_BT=torch.from_numpy(_lay(chain.from_iterable(row.trajectory.logp_old for row in rows), present_BT, np.float64)),
        on_policy_BT=torch.from_numpy(on_policy_BT),
        value_target_BT=tokens([row.value_target_T for row in rows]),
        value_old_BT=tokens([row.value_old_T for row in rows]),
    )


def _lay(values: Iterable[float], present_BT: NDArray[np.bool_], dtype: type[np.generic]) -> NDArray[Any]:
    """The values of all rows, one after the other, laid on the positions that are not padding; the rest is 0."""
    array_BT = np.zeros(present_BT.shape, dtype=dtype)
    array_BT[present_BT] = np.fromiter(values, dtype=dtype, count=int(present_BT.sum()))
    return array_BT


def _empty() -> MicroBatch:
    """One row, one sampled token, weight 0: a rank that ran out of rows must still take part in every collective."""
    zeros = torch.zeros(1, 2, dtype=torch.float64)
    return MicroBatch(
        token_ids_BT=torch.zeros(1, 2, dtype=torch.int64),
        mask_BT=torch.tensor([[False, True]]),
        credit_BT=zeros,
        inverse_z_BT=zeros,
        logp_old_BT=zeros,
        on_policy_BT=torch.zeros(1, 2, dtype=torch.bool),
        value_target_BT=zeros,
        value_old_BT=zeros,
    )
