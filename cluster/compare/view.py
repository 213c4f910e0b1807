"""A comparison as a person reads it: the live list of runs, one table, and one picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.compare.comparison import START, Run
from cluster.compare.runs import Progress
from cluster.compare.stats import Curve, Mean, Row, over_seeds
from cluster.show.format import MISSING, bar, count, duration, fixed, number

_INK, _BEST = "#1f2933", "#868e96"
_COLOURS = ("#e03131", "#1971c2", "#2f9e44", "#f08c00", "#ae3ec9", "#0c8599", "#5f3dc4", "#e64980", "#74b816", "#495057")
_MARKERS = "os^DvPX*<>"
_BAR_WIDTH = 20


def progress_lines(runs: Sequence[Run], progress: Progress) -> RenderableType:
    """How many runs are done, and how far each running one is."""
    lines: list[RenderableType] = [_overall(runs, progress)]
    for run in runs:
        if run.folder in progress.running:
            metrics = progress.running[run.folder]
            step, steps = number(metrics, "step") or 0.0, max(run.config.steps, 1)
            success = fixed(number(metrics, "rollout/success"), ".3f")
            name = "cold start" if run.variant == START else run.variant
            words = "starting" if not metrics else f"step {step:g}/{run.config.steps}  success {success}"
            lines.append(Text.assemble("  ", (bar(step / steps, _BAR_WIDTH), "cyan"), f" {name} · seed {run.seed}  ", (words, "dim")))
    return Group(*lines)


def _overall(runs: Sequence[Run], progress: Progress) -> Text:
    done, failed = len(progress.done), len(progress.failed)
    line = Text.assemble((bar(done / len(runs), _BAR_WIDTH + 2), "green"), f" {done} of {len(runs)} runs done")
    return line.append(f", {failed} failed", "red") if failed else line


def result_table(title: str, rows: Sequence[Row], threshold: float) -> Table:
    """One row a variant; narrow enough for 80 columns, where only names are wrapped."""
    found = Table(title=title, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table = cells(rows, threshold)
    if len({row.seeds for row in rows}) == 1:  # the title says how many
        table = [[cell for place, cell in enumerate(line) if place != 1] for line in table]
    names, *numbers = table[0]
    found.add_column(names, min_width=max(len(word) for row in rows for word in row.variant.split()), overflow="fold")
    for name in numbers:
        found.add_column(name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for line in table[1:]:
        found.add_row(*(cell.replace(" ± ", "±") for cell in line))
    found.caption, found.caption_justify = footnote(rows, threshold), "left"
    return found


def markdown(title: str, rows: Sequence[Row], threshold: float, failures: Mapping[str, str], picture: str) -> str:
    """The same table as a Markdown file, with the picture."""
    head, *body = cells(rows, threshold)
    lines = [f"# {title}", "", "| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    lines += ["", footnote(rows, threshold), "", f"![success against episodes and seconds]({picture})", ""]
    lines += [f"- failed: {name}: {reason}" for name, reason in failures.items()]
    return "\n".join(lines).rstrip() + "\n"


def cells(rows: Sequence[Row], threshold: float) -> list[list[str]]:
    """The table as text: the heads, then a row a variant."""
    first = rows[0].variant
    heads = ["method", "seeds", "before", "after", "run mean", f"episodes to {threshold:.3g}", "seconds", f"vs {first}"]
    body = [
        [
            row.variant,
            str(row.seeds),
            fixed(row.before.value),
            _interval(row.after),
            _interval(row.area),
            MISSING
            if row.episodes_to is None
            else count(row.episodes_to.value) + ("" if row.reached == row.seeds else f" ({row.reached})"),
            count(row.seconds.value),
            MISSING if row.difference is None else _interval(row.difference, "+.3f"),
        ]
        for row in rows
    ]
    return [heads, *body]


def footnote(rows: Sequence[Row], threshold: float) -> str:
    """What the columns mean."""
    return (
        "Sampled success on all evaluation tasks, means over seeds ± their 95 % interval (Student's t). Run mean: "
        f"of success, over as many episodes as every run has. Episodes to {threshold:.3g}: until success first reached it (in brackets: by "
        f"how many seeds, if not by all). Seconds: sampling, learning and pushing. vs {rows[0].variant}: the difference in success after, "
        "seed by seed, from the same start."
    )


def _interval(value: Mean, form: str = ".3f") -> str:
    if value.high is None:
        return format(value.value, form)
    return f"{value.value:{form}} ± {value.high - value.value:.3f}"


def write_picture(path: Path, title: str, curves: Mapping[str, Mapping[int, Curve]], best: float) -> None:
    """Success against episodes, and against seconds: a line and a 95 % band over seeds for each variant."""
    figure = Figure(figsize=(12.5, 5), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for which, axes in enumerate(panels):
        for position, (variant, by_seed) in enumerate((name, runs) for name, runs in curves.items() if runs):
            points = over_seeds(list(by_seed.values()))
            at, heights = [point[which] for point in points], [point[2] for point in points]
            colour, marker = _COLOURS[position % len(_COLOURS)], _MARKERS[position % len(_MARKERS)]
            axes.plot(at, [one.value for one in heights], color=colour, marker=marker, markersize=4, linewidth=1.6, label=variant)
            bands = [(x, one.low, one.high) for x, one in zip(at, heights, strict=True) if one.low is not None]
            axes.fill_between(*zip(*bands, strict=True), color=colour, alpha=0.08) if bands else None
        axes.axhline(best, color=_BEST, linestyle="--", linewidth=1.2, label="best possible")
        _frame(axes, ("episodes", "seconds of sampling, learning and pushing")[which])
    lowest = min(value for by_seed in curves.values() for curve in by_seed.values() for value in curve.success)
    panels[0].set_ylim(max(0.0, lowest - 0.05), min(1.02, best + 0.06))
    panels[0].set_ylabel("sampled success", color=_INK)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    figure.suptitle(title, color=_INK, fontsize=13, fontweight="bold")
    figure.savefig(path, format="png")


def _frame(axes: Axes, xlabel: str) -> None:
    axes.set_xlabel(xlabel, color=_INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.tick_params(colors=_INK)
    axes.grid(alpha=0.25, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)


def closing_words(progress: Progress, seconds: float) -> str:
    """What is left to say when nothing runs any more."""
    words = f"{len(progress.done)} runs are finished; this took {duration(seconds)}."
    return words + "".join(f"\nfailed: {folder}: {reason}" for folder, reason in progress.failed.items())
