"""Typed metrics: every number carries how it is reduced over episodes and workers, so that nobody guesses it from a name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Reduction(StrEnum):
    """How values of one metric become one number."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One value with its reduction; `weight` is what it counts for in a mean (episodes, tokens ...)."""

    value: float
    reduction: Reduction = Reduction.MEAN
    weight: float = 1.0


def reduce_metrics(parts: Iterable[Mapping[str, Metric]]) -> dict[str, float]:
    """Reduce the metrics of several workers to one number a name.

    A mean is weighted: `sum(weight * value) / sum(weight)`; it is left out if all weights are 0, because a mean of nothing is
    not 0. Raises `AssertionError` if two parts disagree about a metric's reduction.

    >>> reduce_metrics([{"eval/success": Metric(value=1.0, weight=3)}, {"eval/success": Metric(value=0.0, weight=1)}])
    {'eval/success': 0.75}
    """
    collected: dict[str, list[Metric]] = {}
    for part in parts:
        for name, metric in part.items():
            collected.setdefault(name, []).append(metric)
    reduced: dict[str, float] = {}
    for name, metrics in collected.items():
        kinds = {metric.reduction for metric in metrics}
        assert len(kinds) == 1, f"{name} is reduced in {len(kinds)} ways"
        values = [metric.value for metric in metrics]
        match kinds.pop():
            case Reduction.SUM:
                reduced[name] = sum(values)
            case Reduction.MAX:
                reduced[name] = max(values)
            case Reduction.MIN:
                reduced[name] = min(values)
            case Reduction.MEAN:
                total = sum(metric.weight for metric in metrics)
                if total:
                    reduced[name] = sum(metric.value * metric.weight for metric in metrics) / total
    return reduced


def merge_metrics(parts: Sequence[Mapping[str, Metric]]) -> dict[str, Metric]:
    """The metrics of several parts of a worker's work as those of the whole, weights added up."""
    merged = {}
    for name, value in reduce_metrics(parts).items():
        metrics = [part[name] for part in parts if name in part]
        merged[name] = Metric(value=value, reduction=metrics[0].reduction, weight=sum(metric.weight for metric in metrics))
    return merged
