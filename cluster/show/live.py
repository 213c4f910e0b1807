"""What a person watches while a run goes on: a panel in a terminal, one plain line a step anywhere else.

The view never stops a run: a metric that is missing or not a number is a dash.
"""

import re
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape

from cluster.show.format import MISSING, count, duration, fixed, number
from cluster.show.live_panel import Phase, RunState, panel

_HISTORY = 200
_ETA_WINDOW = 30
_HEADER_EVERY = 20
_STEP_WIDTH = 9
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLUMNS = (
    ("success", "rollout/success", ".3f"),
    ("eval", "eval/success", ".3f"),
    ("greedy", "eval/success_greedy", ".3f"),
    ("reward", "rollout/reward", ".3f"),
    ("dead", "groups/dead_fraction", ".2f"),
    ("entropy", "learner/entropy_nats", ".3f"),
    ("gradnorm", "learner/grad_norm", ".3g"),
    ("lr", "learner/lr", ".1e"),
    ("gap", "sync/sampler_learner_gap", ".1e"),
    ("tok/s", "rollout/tokens_per_s", "count"),
    ("ep/s", "rollout/episodes_per_s", "count"),
    ("gen s", "time/generate_s", ".2f"),
    ("env s", "time/environment_s", ".2f"),
    ("push s", "time/push_s", ".2f"),
    ("learn s", "time/learn_s", ".2f"),
)


class LiveView:
    """A context manager that shows a run of `total_steps` steps on `console` (standard output by default)."""

    def __init__(self, total_steps: int, *, title: str, console: Console | None = None) -> None:
        self._console = console or Console()
        self._state = RunState(title=title, total_steps=total_steps)
        self._stamps: deque[tuple[int, float]] = deque(maxlen=_ETA_WINDOW)
        self._began = time.monotonic()
        self._lines = 0
        self._reported = 0
        # Bars need a terminal that moves its cursor and an encoding that has them; everything else gets plain lines.
        fancy = self._console.is_terminal and not self._console.is_dumb_terminal and self._console.encoding.startswith("utf")
        self._live = (
            Live(console=self._console, get_renderable=self._render, refresh_per_second=5, vertical_overflow="crop") if fancy else None
        )

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._live is not None:
            self._live.start()
        else:
            steps = f"  {self._state.total_steps} steps" if self._state.total_steps else ""
            self._line(f"pickaxe  {self._state.title}{steps}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._end_phase()
        self._state.phase = None
        if self._live is not None:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Say what is going on outside the steps, for things that last: a start, a cold start, an evaluation."""
        self._end_phase()
        self._state.phase = Phase(text=text, since=time.monotonic())
        self._reported = 0
        if self._live is None:
            self._stamped(text)

    def progress(self, done: float, total: float, text: str) -> None:
        """Say how far a phase of known length is; a new text begins a new phase."""
        if self._state.phase is None or self._state.phase.text != text:
            self.phase(text)
        assert self._state.phase is not None
        self._state.phase.done, self._state.phase.total = done, total
        tenth = int(10 * done / total) if total else 0
        if self._live is None and tenth > self._reported:
            self._reported = tenth
            self._stamped(f"{text} {done:g}/{total:g}")

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show the metrics of one finished step; it ends the phase that was going on."""
        self._end_phase()
        state = self._state
        self._stamps.append((step, time.monotonic()))
        state.success = [*state.success[1 - _HISTORY :], number(metrics, "rollout/success")]
        if any(number(metrics, name) is not None for name in ("eval/success", "eval/success_greedy")):
            state.evaluation, state.evaluated_at = dict(metrics), step
        state.metrics, state.step, state.eta, state.phase = dict(metrics), step, self._eta(step), None
        if self._live is not None:
            self._live.refresh()
            return
        if self._lines % _HEADER_EVERY == 0:
            self._line("  ".join(["step".rjust(_STEP_WIDTH), *(name.rjust(_width(name)) for name, _, _ in _COLUMNS), "eta"]))
        self._lines += 1
        cells = [_cell(number(metrics, key), form).rjust(_width(name)) for name, key, form in _COLUMNS]
        self._line("  ".join([f"{step}/{state.total_steps}".rjust(_STEP_WIDTH), *cells, duration(state.eta, coarse=True)]))

    def message(self, text: str) -> None:
        """Print something that stays, above the panel."""
        if self._live is None:
            self._line(text)
        else:
            self._console.print(_CONTROL.sub("", text), markup=False, highlight=False)

    def _render(self) -> RenderableType:
        return panel(self._state, time.monotonic(), self._console.width)

    def _eta(self, step: int) -> float | None:
        first_step, first_time = self._stamps[0]
        last_step, last_time = self._stamps[-1]
        if last_step <= first_step:
            return 0.0 if step >= self._state.total_steps else None
        return max(self._state.total_steps - step, 0) * (last_time - first_time) / (last_step - first_step)

    def _end_phase(self) -> None:
        """In a terminal the phases before the first step leave a line with their duration."""
        phase, self._state.phase = self._state.phase, None
        if phase is not None and self._live is not None and self._state.step is None:
            took = duration(time.monotonic() - phase.since)
            self._console.print(f"[green]✓[/] {escape(phase.text)} [dim]{took}[/]", highlight=False)

    def _stamped(self, text: str) -> None:
        self._line(f"[{time.monotonic() - self._began:8.1f} s] {text}")

    def _line(self, text: str) -> None:
        encoding = self._console.encoding or "utf-8"
        plain = _CONTROL.sub("", text).encode(encoding, "replace").decode(encoding)
        self._console.file.write(plain + "\n")
        self._console.file.flush()


def _cell(value: float | None, form: str) -> str:
    if value is None:
        return MISSING
    return count(value) if form == "count" else fixed(value, form)


def _width(name: str) -> int:
    return max(len(name), 5 if name in ("tok/s", "ep/s") else 6 if name in ("gen s", "env s") else 7)
