"""The pictures of `pickaxe lab`: exact distributions and variances, drawn without a display."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from learner.lab import VarianceRow

Distribution = Sequence[tuple[float, float]]
"""Pairs of a probability and a value."""

_INK, _SOFT = "#1f2933", "#868e96"
_WITHOUT, _WITH, _OWN = "#e8590c", "#2f9e44", "#1971c2"
_COLOURS = ("#868e96", "#f08c00", "#1971c2", "#ae3ec9", "#2f9e44", "#e03131")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_SHIFT = 0.004  # bars at the same value stand beside each other


def write_bandit(path: Path, pulls: Mapping[float, Distribution], means: Mapping[float, Distribution], episodes: int, truth: float) -> None:
    """The distribution of one sample gradient and of the mean of `episodes`, for each baseline, with their common expectation."""
    figure = _figure((11, 4.4), "The same expectation, another variance: a baseline in the two-armed bandit")
    left, right = figure.subplots(1, 2)
    for axes, title, distributions in ((left, "one pull", pulls), (right, f"the mean of {episodes} pulls", means)):
        for number, (baseline, distribution) in enumerate(distributions.items()):
            _stems(axes, distribution, number, f"b = {baseline:g}{' (no baseline)' if baseline == 0 else ''}, std {_std(distribution):.3f}")
        axes.axvline(truth, color=_INK, linestyle="--", linewidth=1.2, label=f"expectation of all: {truth:g}")
        _frame(axes, f"Gradient from {title}", "gradient (R - b) · slope of log-prob", "probability")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
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
    right.set_yscale("log")
    _frame(left, "E|g - E g|² / |E g|²", "success rate of the policy", "noise to signal of one group")
    _frame(right, "Relative to no baseline", "success rate of the policy", "share of the variance without a baseline")
    figure.savefig(path, format="png")


def _figure(size: tuple[float, float], title: str) -> Figure:
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, color=_INK, fontsize=13, fontweight="bold")
    return figure


def _stems(axes: Axes, distribution: Distribution, number: int, label: str) -> None:
    colour = (_WITHOUT, _WITH, _OWN)[number]
    values = [value + number * _SHIFT for _, value in distribution]
    probabilities = [probability for probability, _ in distribution]
    axes.vlines(values, 0, probabilities, color=colour, linewidth=2.5, alpha=0.8)
    axes.plot(values, probabilities, "o", color=colour, markersize=6, label=label)


def _std(distribution: Distribution) -> float:
    mean = sum(probability * value for probability, value in distribution)
    return float(sum(probability * (value - mean) ** 2 for probability, value in distribution) ** 0.5)


def _frame(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
    axes.set_title(title, fontsize=11, color=_INK)
    axes.set_xlabel(xlabel, color=_INK)
    axes.set_ylabel(ylabel, color=_INK)
    axes.tick_params(colors=_INK)
    axes.grid(alpha=0.25, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
