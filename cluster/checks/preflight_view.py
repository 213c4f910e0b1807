"""A preflight as a person reads it: a histogram, the numbers, the advice; and the histogram as a picture."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cluster.checks.preflight import Estimate, Preflight, StepSeconds
from cluster.checks.preflight_advice import Advice, informative
from cluster.show.format import bar, duration

_INK = "#1f2933"
_ZERO, _MIXED, _ONE = "#e03131", "#1971c2", "#2f9e44"
_BAR_WIDTH, _MOST_ROWS = 16, 20


def binned(histogram: Sequence[int], most: int) -> list[tuple[str, int]]:
    """The histogram as at most `most` rows of a label and a count; none and all of the siblings stay rows of their own.

    >>> binned([5, 1, 2, 3, 4, 9], 4)
    [('0/5', 5), ('1-2/5', 3), ('3-4/5', 7), ('5/5', 9)]
    """
    size = len(histogram) - 1
    width = math.ceil((size - 1) / max(most - 2, 1)) or 1
    rows = [(f"0/{size}", histogram[0])]
    for first in range(1, size, width):
        last = min(first + width, size) - 1
        rows.append((f"{first}/{size}" if first == last else f"{first}-{last}/{size}", sum(histogram[first : last + 1])))
    return [*rows, (f"{size}/{size}", histogram[size])]


def preflight_report(title: str, seen: Preflight, seconds: StepSeconds, advice: Sequence[Advice]) -> RenderableType:
    """Everything for the terminal."""
    body = Table.grid(padding=(0, 4))
    body.add_row(_histogram(seen), _numbers(seen, seconds))
    words = Table.grid(padding=(0, 1))
    for one in advice:
        words.add_row(Text("✓", "bold green") if one.good else Text("→", "bold yellow"), Text(one.text))
    return Group(Text(title, "bold"), Text(""), body, Panel(words, title="advice", title_align="left", border_style="cyan", padding=(0, 1)))


def _histogram(seen: Preflight) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    rows = binned(seen.histogram, _MOST_ROWS)
    highest = max(count for _, count in rows)
    table.add_row("solved", "", "groups")
    for number, (label, count) in enumerate(rows):
        style = "red" if number == 0 else "green" if number == len(rows) - 1 else "blue"
        table.add_row(label, Text(bar(count / highest, _BAR_WIDTH), style), str(count) if count else "")
    return table


def _numbers(seen: Preflight, seconds: StepSeconds) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, share in (
        ("success", seen.success),
        ("none succeed", seen.all_zero),
        ("all succeed", seen.all_one),
        ("mixed", seen.mixed),
    ):
        table.add_row(name, f"{share.value:.3f}", _interval(share))
    table.add_row("")
    table.add_row("invalid turns", f"{seen.invalid_turns:.1%}")
    table.add_row("cut in a turn", f"{seen.cut_turns:.1%}", f"limit {seen.max_turn_tokens} tokens")
    table.add_row("cut by context", f"{seen.cut_contexts:.1%}", f"limit {seen.max_context_tokens} tokens")
    table.add_row("tokens a turn", f"{seen.turn_tokens_median:g}", f"95 %: {seen.turn_tokens_p95:g}")
    table.add_row("turns an episode", f"{seen.turns:.2f}", f"longest: {seen.longest_episode}")
    if seen.failed:
        table.add_row("failed groups", str(seen.failed), "not counted above")
    table.add_row("")
    table.add_row("a step", duration(seconds.step), "improve phase not included" if seen.in_rounds else "")
    for name in ("generate", "learn", "push"):
        table.add_row(f"  {name}", duration(getattr(seconds, name)))
    return table


def _interval(share: Estimate) -> str:
    return f"[{share.low:.3f}, {share.high:.3f}]"


def write_histogram(path: Path, title: str, seen: Preflight) -> None:
    """Groups by how many siblings succeeded, beside what the same mean success would give if all tasks were equally hard."""
    figure = Figure(figsize=(9, 4.6), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes: Axes = figure.subplots()
    size, p = seen.group_size, seen.success.value
    colours = [_ZERO, *[_MIXED] * (size - 1), _ONE]
    axes.bar(range(size + 1), seen.histogram, color=colours, width=0.8)
    expected = [seen.groups * math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size + 1)]
    label = f"if all tasks were equally hard: {informative(p, size):.0%} mixed"
    axes.plot(range(size + 1), expected, "o-", color=_INK, markersize=3.5, linewidth=1, label=label)
    figure.suptitle(title, color=_INK, fontsize=13, fontweight="bold")
    axes.set_title(
        f"success {p:.3f} {_interval(seen.success)} · none {seen.all_zero.value:.0%} · all {seen.all_one.value:.0%} · "
        f"mixed {seen.mixed.value:.0%} {_interval(seen.mixed)}",
        fontsize=10,
        color=_INK,
    )
    axes.set_xlabel(f"siblings that succeeded, of {size}", color=_INK)
    axes.set_ylabel("groups", color=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.25, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, format="png")
