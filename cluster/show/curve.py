"""The picture of a run: success against step, and beside it what stops the learning (dead groups, vanishing entropy)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cluster.show.format import number
from cluster.sinks import read_metrics

_INK = "#1f2933"
_SAMPLED, _EVALUATED, _GREEDY, _BEST = "#2f9e44", "#1971c2", "#e8590c", "#868e96"
_ALL_FAILED, _ALL_SOLVED, _DEAD, _ENTROPY = "#e03131", "#8ce99a", "#868e96", "#5f3dc4"
_LEVELS = colormaps["cool"]
_HEADROOM = 1.16  # above the data, for the legend


def read_summary(run_dir: Path) -> dict[str, Any]:
    """summary.json of a run; empty while the run is not finished."""
    path = Path(run_dir) / "summary.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def run_title(run_dir: Path, summary: Mapping[str, Any]) -> str:
    """Recipe, method and seed as far as they are known; else the name of the run."""
    parts = [str(summary[name]) for name in ("recipe", "method") if summary.get(name)]
    if summary.get("seed") is not None:
        parts.append(f"seed {summary['seed']}")
    return " · ".join(parts) or Path(run_dir).resolve().name


def write_curve(run_dir: Path) -> Path:
    """Draw curve.png into the run folder and return its path.

    Raises `InputError` if the folder has no metrics.jsonl. Metrics that are missing are left out of the picture.
    """
    run_dir = Path(run_dir)
    records, summary = read_metrics(run_dir), read_summary(run_dir)
    figure = Figure(figsize=(11, 4.4), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    figure.suptitle(run_title(run_dir, summary), color=_INK, fontsize=13, fontweight="bold")
    _success(left, records, summary)
    _health(right, records)
    path = run_dir / "curve.png"
    figure.savefig(path, format="png")
    return path


def _series(records: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of the records that have a finite value."""
    points = [(record["step"], value) for record in records if (value := number(record, name)) is not None]
    array = np.array(points, dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _levels(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The levels that were trained on, by name."""
    names = {name for record in records for name in record if name.startswith("level/") and name.endswith("/success")}
    return sorted(name.removeprefix("level/").removesuffix("/success") for name in names)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Centred mean over about a fifteenth of the run; the window shrinks at both ends, so that no value is made up."""
    half = max(1, len(values) // 30)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    reach = np.minimum(np.minimum(at, len(values) - 1 - at), half)
    return np.asarray((sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1))


def _success(axes: Axes, records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    steps, sampled = _series(records, "rollout/success")
    if len(steps):
        axes.plot(steps, sampled, color=_SAMPLED, alpha=0.35, linewidth=1)
        axes.plot(steps, _smooth(sampled), color=_SAMPLED, linewidth=2.2, label="sampled in training")
    levels = _levels(records)
    for place, level in enumerate(levels if len(levels) > 1 else ()):
        steps, solved = _series(records, f"level/{level}/success")
        axes.plot(steps, _smooth(solved), color=_LEVELS(place / (len(levels) - 1)), linewidth=1.1, label=f"level {level}")
    for name, marker, colour, label in (
        ("eval/success", "o", _EVALUATED, "evaluation, sampled"),
        ("eval/success_greedy", "D", _GREEDY, "evaluation, greedy"),
    ):
        at, values = _series(records, name)
        before = number(summary, f"{name}_before")
        if before is not None and 0 not in at:
            at, values = np.concatenate([[0.0], at]), np.concatenate([[before], values])
        if len(at):
            axes.plot(at, values, color=colour, linewidth=0.8, alpha=0.9, marker=marker, markersize=5, label=label)
    bests = _series(records, "env/best_success")[1]
    best = number(summary, "env/best_success")
    if best is None and len(bests):
        best = float(bests[-1])
    if best is not None:
        axes.axhline(best, color=_BEST, linestyle="--", linewidth=1.2, label=f"best possible, {best:.4g}")
    _frame(axes, "Success", "success (share of episodes)")
    axes.set_ylim(-0.02, 1.04)


def _health(axes: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """Dead groups, stacked by kind where the kinds are known, and the entropy on an axis of its own."""
    zero_steps, zeros = _series(records, "groups/dead_zero_fraction")
    one_steps, ones = _series(records, "groups/dead_one_fraction")
    if len(zero_steps) and np.array_equal(zero_steps, one_steps):
        axes.stackplot(zero_steps, zeros, ones, colors=(_ALL_FAILED, _ALL_SOLVED), alpha=0.75, labels=("all failed", "all solved"))
    else:
        steps, dead = _series(records, "groups/dead_fraction")
        if len(steps):
            axes.fill_between(steps, dead, color=_DEAD, alpha=0.5, label="dead groups")
    _frame(axes, "Groups without a signal, and entropy", "dead groups (share of groups)", legend=False)
    axes.set_ylim(0, _HEADROOM)
    axes.set_yticks(np.linspace(0, 1, 6))
    handles, labels = axes.get_legend_handles_labels()
    steps, entropy = _series(records, "learner/entropy_nats")
    if len(steps):
        other = axes.twinx()
        handles += other.plot(steps, entropy, color=_ENTROPY, linewidth=1.8)
        labels.append("entropy")
        other.set_ylabel("entropy (nats a token)", color=_ENTROPY)
        other.tick_params(colors=_ENTROPY)
        other.set_ylim(0, max(float(entropy.max()), 1e-3) * _HEADROOM)
        other.spines[["top", "left"]].set_visible(False)
    if handles:
        axes.legend(handles, labels, frameon=False, fontsize=9, loc="upper center", ncols=len(handles))


def _frame(axes: Axes, title: str, ylabel: str, *, legend: bool = True) -> None:
    axes.set_title(title, fontsize=11, color=_INK)
    axes.set_xlabel("step", color=_INK)
    axes.set_ylabel(ylabel, color=_INK)
    axes.tick_params(colors=_INK)
    axes.grid(alpha=0.25, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.spines[["top", "right"]].set_visible(False)
    if not axes.has_data():
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", va="center", color=_BEST)
    elif legend:
        axes.legend(frameon=False, fontsize=9, loc="lower right", ncols=1 + (len(axes.get_legend_handles_labels()[0]) > 5))
