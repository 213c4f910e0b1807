"""The panel of the live view, as a pure function of what is known: nothing here remembers or prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cluster.show.format import bar, count, duration, fixed, number, sparkline

PANEL_WIDTH = 96
_PHASE_BAR_WIDTH = 30
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TIMES = (("generate", "green"), ("environment", "yellow"), ("push", "magenta"), ("learn", "blue"))


@dataclass(kw_only=True)
class Phase:
    """What is going on outside the steps: a text, when it began, and how far it is where that is known."""

    text: str
    since: float
    done: float | None = None
    total: float | None = None


@dataclass(kw_only=True)
class RunState:
    """Everything that the live view knows of a run. `success` is the history of sampled success, a value or None a step."""

    title: str
    total_steps: int
    step: int | None = None
    eta: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    success: list[float | None] = field(default_factory=list)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    evaluated_at: int | None = None
    phase: Phase | None = None


def panel(state: RunState, now: float, width: int) -> RenderableType:
    """The whole view, at most `width` cells wide: before the first step the phase alone, then the panel."""
    width = min(width, PANEL_WIDTH)
    if state.step is None:
        return _phase_line(state.phase, now) if state.phase else Text("")
    inside = max(width - 6, 20)
    rows: list[RenderableType] = [_progress(state, inside), Text(""), _success(state, inside), Text(""), _body(state.metrics, inside)]
    if state.phase is not None:
        rows += [Text(""), _phase_line(state.phase, now)]
    title = Text.assemble((" pickaxe ", "bold cyan"), (f"· {state.title} ", "bold"))
    return Panel(Group(*rows), title=title, title_align="left", border_style="cyan", padding=(1, 2), width=width)


def _progress(state: RunState, width: int) -> Text:
    share = min((state.step or 0) / state.total_steps, 1.0) if state.total_steps > 0 else 1.0
    words = f" step {state.step}/{state.total_steps}   {share:.0%}   eta {duration(state.eta, coarse=True)}"
    cells = max(width - len(words) - 1, 8)
    full = round(share * cells)
    return Text.assemble(("━" * full, "bold cyan"), ("━" * (cells - full), "bright_black"), (words, ""), no_wrap=True, overflow="crop")


def _success(state: RunState, width: int) -> Table:
    """Sampled success with its recent history, and the last evaluation."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=11)
    table.add_column(justify="right", width=6)
    table.add_column(no_wrap=True, overflow="crop")
    history = sparkline(state.success, max(width - 26, 8))
    table.add_row("success", Text(fixed(number(state.metrics, "rollout/success")), "bold green"), Text(history, "green"))
    when = f"   at step {state.evaluated_at}" if state.evaluated_at is not None else ""
    greedy = Text.assemble("greedy ", (fixed(number(state.evaluation, "eval/success_greedy")), "bold"), (when, "dim"))
    table.add_row("evaluated", Text(fixed(number(state.evaluation, "eval/success")), "bold"), greedy)
    return table


def _body(metrics: Mapping[str, Any], width: int) -> Table:
    """Left where a step's time goes, right the numbers to watch."""
    times = {name: number(metrics, f"time/{name}_s") for name, _ in _TIMES}
    whole = number(metrics, "time/step_s") or sum(seconds or 0.0 for seconds in times.values())
    narrow = width < 72
    left = Table.grid(padding=(0, 2))
    left.add_column(style="dim", width=11)
    left.add_column(justify="right", width=8)
    left.add_column(no_wrap=True)
    for name, colour in _TIMES:
        seconds = times[name]
        filled = bar(seconds / whole if seconds is not None and whole > 0 else None, 6 if narrow else 16)
        left.add_row(name, duration(seconds), Text(filled, colour))
    left.add_row("step", duration(number(metrics, "time/step_s")), "")
    right = Table.grid(padding=(0, 2))
    for style, side in (("dim", "left"), ("", "right"), ("dim", "left"), ("", "right")):
        right.add_column(style=style, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for first, second in zip(*_readings(metrics), strict=True):
        right.add_row(*first, *second)
    if narrow:
        stacked = Table.grid()
        stacked.add_row(left)
        stacked.add_row("")
        stacked.add_row(right)
        return stacked
    table = Table.grid(padding=(0, 3))
    table.add_row(left, right)
    return table


def _readings(metrics: Mapping[str, Any]) -> tuple[Sequence[tuple[str, str]], Sequence[tuple[str, str]]]:
    def read(name: str) -> float | None:
        return number(metrics, name)

    outcome = (
        ("reward", fixed(read("rollout/reward"))),
        ("dead groups", fixed(read("groups/dead_fraction"))),
        ("entropy", fixed(read("learner/entropy_nats"))),
        ("grad norm", fixed(read("learner/grad_norm"), ".3g")),
        ("lr", fixed(read("learner/lr"), ".1e")),
    )
    machine = (
        ("tokens/s", count(read("rollout/tokens_per_s"))),
        ("episodes/s", count(read("rollout/episodes_per_s"))),
        ("sync gap", fixed(read("sync/sampler_learner_gap"), ".1e")),
        ("probe gap", fixed(read("sync/probe_max_abs_diff"), ".1e")),
        ("failed", count(read("groups/failed"))),
    )
    return outcome, machine


def _phase_line(phase: Phase, now: float) -> Text:
    """A spinner, what is going on, for how long, and a bar where the length is known."""
    elapsed = max(now - phase.since, 0.0)
    line = Text.assemble((_SPINNER[int(now * 8) % len(_SPINNER)], "cyan"), f" {phase.text} ", no_wrap=True, overflow="ellipsis")
    if phase.done is not None and phase.total:
        full = round(min(max(phase.done / phase.total, 0.0), 1.0) * _PHASE_BAR_WIDTH)
        line.append(" " + "━" * full, "cyan")
        line.append("━" * (_PHASE_BAR_WIDTH - full), "bright_black")
        line.append(f" {phase.done:g}/{phase.total:g} ")
    line.append(f" {duration(elapsed)}", "dim")
    return line
