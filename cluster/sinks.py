"""Where the metrics of a step go: metrics.jsonl (the source of truth), TensorBoard, and one optional tracker.

Every step is one line of metrics.jsonl, written and flushed at once, so that a killed run loses at most the line it was writing.
"""

import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from envs.errors import InputError

Tracker = Literal["none", "wandb", "trackio"]
_FILE = "metrics.jsonl"


class MetricSink:
    """Takes the metrics of one run, step by step; use it as a context manager or call `close`.

    Raises `InputError` if the tracker is unknown or its package is not installed.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        tracker: Tracker = "none",
        project: str = "pickaxe",
        run_name: str | None = None,
        config_dict: Mapping[str, Any] | None = None,
    ) -> None:
        self._run_dir = Path(run_dir)
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._tracker = _open_tracker(tracker, self._run_dir, project, run_name or self._run_dir.name, dict(config_dict or {}))
        self._jsonl = (self._run_dir / _FILE).open("w", encoding="utf-8")
        from torch.utils.tensorboard import SummaryWriter  # seconds to import: only those who write metrics pay for it

        self._tensorboard = SummaryWriter(str(self._run_dir / "tensorboard"), flush_secs=10)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one step.

        NaN and infinity have no JSON: they are null in metrics.jsonl, and left out elsewhere.
        """
        values = {name: float(value) for name, value in metrics.items()}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        line = json.dumps({"step": step} | {name: finite.get(name) for name in values}, allow_nan=False)
        self._jsonl.write(line + "\n")
        self._jsonl.flush()
        for name, value in finite.items():
            self._tensorboard.add_scalar(name, value, step)
        if self._tracker is not None:
            self._tracker.log(finite, step=step)

    def close(self) -> None:
        """Flush and close everything; a second call does nothing."""
        self._jsonl.close()
        self._tensorboard.close()
        if self._tracker is not None:
            self._tracker.finish()
            self._tracker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The steps of a run in order, each with "step" and its metrics; null values are None.

    A torn last line (the run was killed while it wrote) is left out. Raises `InputError` if there is no metrics.jsonl or
    another line of it is not a JSON object with a step.
    """
    path = Path(run_dir) / _FILE
    if not path.is_file():
        raise InputError(f"there is no {path}; expected the folder of a run, such as runs/NAME, which has a {_FILE}")
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records: list[dict[str, Any]] = []
    for position, line in enumerate(lines):
        if not line.strip():
            continue
        record = _record(line)
        if record is None:
            if position == len(lines) - 1:
                break
            raise InputError(f"line {position + 1} of {path} is {line[:60]!r}; expected a JSON object with a step. Delete that line")
        records.append(record)
    return records


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _open_tracker(tracker: str, run_dir: Path, project: str, run_name: str, config_dict: dict[str, Any]) -> Any:
    """A tracker's run, with `log(metrics, step=...)` and `finish()`; None for `none`."""
    if tracker == "none":
        return None
    if tracker not in ("wandb", "trackio"):
        raise InputError(f"output.tracker is {tracker!r}; expected none, wandb or trackio")
    try:
        package = importlib.import_module(tracker)
    except ModuleNotFoundError as error:
        raise InputError(
            f"output.tracker is {tracker}, but the package {error.name} is not installed. Install it (pip install {tracker}) "
            f"or set output.tracker=none: metrics.jsonl and TensorBoard are written in any case"
        ) from error
    where = {"dir": str(run_dir)} if tracker == "wandb" else {}
    return package.init(project=project, name=run_name, config=config_dict, **where)
