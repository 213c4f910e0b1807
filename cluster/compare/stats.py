"""The numbers of a comparison: success against episodes and seconds, and means over seeds with their uncertainty. Pure functions."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cluster.config import RunConfig
from cluster.show.format import number

_Z = 1.959964
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""0.975-quantiles of Student's t with 1 to 9 degrees of freedom."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run: success at each evaluation, after so many episodes and seconds of training (sampling, learning, pushing)."""

    episodes: tuple[float, ...]
    seconds: tuple[float, ...]
    success: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over seeds and its 95 % interval by Student's t; one seed has no interval."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant over its seeds. `area` is the mean success over the episodes that all runs have, so it rewards learning early;
    `episodes_to` those until success first reached the threshold, over the `reached` seeds that did; `difference` is in `after`,
    seed by seed, to the first variant."""

    variant: str
    seeds: int
    before: Mean
    after: Mean
    area: Mean
    episodes_to: Mean | None
    reached: int
    seconds: Mean
    difference: Mean | None


def read_curve(records: Sequence[Mapping[str, Any]], config: RunConfig) -> Curve:
    """The curve of a run's metrics, step 0 first."""
    size, groups = config.rollout.group_size, config.rollout.groups_per_step
    episodes = seconds = 0.0
    points = []
    for record in records:
        if record["step"] > 0:
            episodes += size * (groups - (number(record, "groups/failed") or 0.0)) + (number(record, "rollout/resampled_episodes") or 0.0)
            seconds += number(record, "time/step_s") or 0.0
        if (success := number(record, "eval/success")) is not None:
            points.append((episodes, seconds, success))
    columns = zip(*points, strict=True)
    return Curve(**dict(zip(("episodes", "seconds", "success"), columns, strict=True)))


def mean(values: Sequence[float]) -> Mean:
    """The mean with its 95 % interval: mean +- t * s / sqrt(n)."""
    value = statistics.fmean(values)
    if len(values) < 2:
        return Mean(value=value, low=None, high=None)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Mean(value=value, low=value - half, high=value + half)


def t_quantile(degrees: int) -> float:
    """The 0.975-quantile of Student's t: a table, and from 10 degrees on Fisher's expansion (Abramowitz and Stegun 26.7.5).

    >>> round(t_quantile(2), 3), round(t_quantile(30), 3)
    (4.303, 2.042)
    """
    if degrees <= len(_T):
        return _T[degrees - 1]
    z, n = _Z, degrees
    return (
        z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2) + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def area(curve: Curve, horizon: float) -> float:
    """The mean success from the first episode to `horizon`, success rising in straight lines between evaluations."""
    inside = [at for at in curve.episodes if at < horizon]
    at = np.array([*inside, horizon])
    height = np.interp(at, curve.episodes, curve.success)
    return float(np.trapezoid(height, at) / horizon) if horizon > 0 else float(height[0])


def episodes_to(curve: Curve, threshold: float) -> float | None:
    """The episodes until success first reached the threshold, in a straight line between evaluations; None if it never did."""
    previous = None
    for at, success in zip(curve.episodes, curve.success, strict=True):
        if success >= threshold:
            if previous is None:
                return at
            before, low = previous
            return min(at, before + (at - before) * (threshold - low) / (success - low))  # rounding must not pass the evaluation
        previous = at, success
    return None


def table(curves: Mapping[str, Mapping[int, Curve]], threshold: float) -> list[Row]:
    """A row for each variant that has a finished run; `curves` has each variant's runs by seed, the yardstick first."""
    horizon = min(curve.episodes[-1] for by_seed in curves.values() for curve in by_seed.values())
    yardstick = next(iter(curves))
    rows = []
    for variant, by_seed in curves.items():
        if not by_seed:
            continue
        runs = list(by_seed.values())
        reached = [at for curve in runs if (at := episodes_to(curve, threshold)) is not None]
        pairs = [curve.success[-1] - curves[yardstick][seed].success[-1] for seed, curve in by_seed.items() if seed in curves[yardstick]]
        rows.append(
            Row(
                variant=variant,
                seeds=len(runs),
                before=mean([curve.success[0] for curve in runs]),
                after=mean([curve.success[-1] for curve in runs]),
                area=mean([area(curve, horizon) for curve in runs]),
                episodes_to=mean(reached) if reached else None,
                reached=len(reached),
                seconds=mean([curve.seconds[-1] for curve in runs]),
                difference=mean(pairs) if pairs and variant != yardstick else None,
            )
        )
    return rows


def over_seeds(curves: Sequence[Curve]) -> list[tuple[float, float, Mean]]:
    """Episodes, seconds and success of each evaluation, meant over the seeds, as far as all seeds have it."""
    points = zip(*(zip(curve.episodes, curve.seconds, curve.success, strict=True) for curve in curves), strict=False)
    return [
        (statistics.fmean(one[0] for one in point), statistics.fmean(one[1] for one in point), mean([one[2] for one in point]))
        for point in points
    ]
