"""The pictures of `pickaxe lab`: exact distributions and variances, drawn without a display."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from learner.lab import VarianceRow

Distribution = Sequence[tuple[float, float]]
"""Pairs of a probability and a value."""

_INK, _SOFT = "#1f2933", "#868e96"
_BASELINES = ("#e8590c", "#2f9e44", "#1971c2")
_COLOURS = ("#868e96", "#f08c00", "#1971c2", "#ae3ec9", "#2f9e44", "#e03131")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_SAME = 1e-12  # values this close are one: the baseline 0.75 leaves no variance at all


def write_bandit(path: Path, pulls: Mapping[float, Distribution], means: Mapping[float, Distribution], episodes: int, truth: float) -> None:
    """The distribution of one sample gradient and of the mean of `episodes`, for each baseline, with their common expectation."""
    figure = _figure((11, 4.4), "The same expectation, another variance: a baseline in the two-armed bandit")
    left, right = figure.subplots(1, 2)
    for number, baseline in enumerate(pulls):
        words = f"b = {baseline:g}{' (no baseline)' if baseline == 0 else ''}, std "
        _stems(left, pulls[baseline], number, words + f"{_std(pulls[baseline]):.3f}")
        _density(right, means[baseline], number, words + f"{_std(means[baseline]):.3f}")
    for axes in (left, right):
        axes.axvline(truth, color=_INK, linestyle="--", linewidth=1.2, label=f"expectation of all: {truth:g}")
    _frame(left, "Gradient from one pull", "gradient (R - b) · slope of log-prob", "probability")
    left.yaxis.set_major_formatter(PercentFormatter(1))
    _frame(right, f"Gradient from the mean of {episodes} pulls", "gradient (R - b) · slope of log-prob", "probability density")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    figure.savefig(path, format="png")


def write_variance(path: Path, rows: Sequence[VarianceRow], toy: str) -> None:
    """Noise to signal against success rate, one line a baseline, and beside it the same as a share of that without a baseline."""
    figure = _figure((11.5, 4.8), f"What a baseline is for: the variance of the gradient, toy {toy}, G = {rows[0].group_size}")
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(row.baseline for row in rows))
    without = {row.success_rate: row.noise_to_signal for row in rows if row.baseline == names[0]}
    for number, name in enumerate(names):
        line = sorted((row.success_rate, row.noise_to_signal) for row in rows if row.baseline == name)
        rates = [rate for rate, _ in line]
        # The group mean's line lies exactly under that of leave one out: it is wider, so that both are seen.
        style = {"color": _COLOURS[number], "marker": _MARKERS[number], "markersize": 5, "linewidth": 4 if name == "group mean" else 1.5}
        left.plot(rates, [noise for _, noise in line], label=name, alpha=0.85, **style)
        right.plot(rates, [noise / without[rate] for rate, noise in line], label=name, alpha=0.85, **style)
    left.set_yscale("log")
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.set_ylim(bottom=0)
    _frame(left, "E|g - E g|² / |E g|²", "success rate of the policy", "noise to signal of one group")
    _frame(right, "Relative to no baseline", "success rate of the policy", "noise to signal, in % of that without a baseline", legend=False)
    figure.savefig(path, format="png")


def _figure(size: tuple[float, float], title: str) -> Figure:
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, color=_INK, fontsize=13, fontweight="bold")
    return figure


def _stems(axes: Axes, distribution: Distribution, number: int, label: str) -> None:
    colour = _BASELINES[number]
    merged: dict[float, float] = {}
    for probability, value in distribution:
        merged[round(value, 9)] = merged.get(round(value, 9), 0.0) + probability
    values, probabilities = list(merged), list(merged.values())
    width = 6 - 1.8 * number  # thinner on top of thicker: bars at the same value are all seen
    axes.vlines(values, 0, probabilities, color=colour, linewidth=width)
    axes.plot(values, probabilities, "o", color=colour, markersize=2 + width, label=label)


def _density(axes: Axes, distribution: Distribution, number: int, label: str) -> None:
    """Probability by the distance of neighbouring values, so that areas are 1 and less variance is a higher peak."""
    colour = _BASELINES[number]
    pairs = sorted((value, probability) for probability, value in distribution)
    spacing = (pairs[-1][0] - pairs[0][0]) / (len(pairs) - 1)
    if spacing < _SAME:
        axes.axvline(pairs[0][0], color=colour, linewidth=3, alpha=0.7, label=label)
        return
    values, heights = [value for value, _ in pairs], [probability / spacing for _, probability in pairs]
    axes.fill_between(values, heights, color=colour, alpha=0.15)
    axes.plot(values, heights, "o-", color=colour, markersize=4, linewidth=1.5, label=label)


def _std(distribution: Distribution) -> float:
    mean = sum(probability * value for probability, value in distribution)
    return float(sum(probability * (value - mean) ** 2 for probability, value in distribution) ** 0.5)


def _frame(axes: Axes, title: str, xlabel: str, ylabel: str, *, legend: bool = True) -> None:
    axes.set_title(title, fontsize=11, color=_INK)
    axes.set_xlabel(xlabel, color=_INK)
    axes.set_ylabel(ylabel, color=_INK)
    axes.tick_params(colors=_INK)
    axes.grid(alpha=0.25, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=9)
