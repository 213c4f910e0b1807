"""Running a comparison: trainings in processes of their own, a few at a time, and never one that has finished already."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.compare.comparison import Run
from cluster.interrupt import terminated_as_interrupted, uninterrupted
from cluster.load_config import load_config
from cluster.run_folder import MARK
from envs.errors import InputError

_POLL_S = 0.5
_TAIL_BYTES = 65536


@dataclass(kw_only=True)
class Progress:
    """What became of each run so far: `running` has the last step's metrics (empty before the first), `failed` the reason."""

    done: list[Run] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)
    running: dict[Path, Mapping[str, Any]] = field(default_factory=dict)


def finished(run: Run) -> bool:
    """True if the run's folder holds it from beginning to end. Raises `InputError` if it holds another one."""
    if not (run.folder / "summary.json").is_file():
        return False
    there, wanted = (_comparable(config) for config in (load_config(str(run.folder / MARK)).model_dump(), run.config.model_dump()))
    if different := sorted(key for key in wanted if there.get(key) != wanted[key]):
        key = different[0]
        raise InputError(
            f"{run.folder} was run with {key}={there.get(key)!r}, and this comparison wants {wanted[key]!r}; give another --out, or delete "
            "that folder to run it again"
        )
    return True


def run_all(runs: Sequence[Run], base: str, parallel: int, show: Callable[[Progress], None]) -> Progress:
    """Train what is not finished, `parallel` at a time; a run that fails is reported and the others go on.

    `show` is called twice a second. Ctrl-C ends the running ones in order and is raised again.
    """
    progress = Progress(done=[run for run in runs if finished(run)])
    pending = [run for run in runs if run not in progress.done]
    with terminated_as_interrupted(), _processes() as active:
        while pending or active:
            for process, run in list(active.items()):
                if (status := process.poll()) is not None:
                    del active[process]
                    _note_end(run, status, progress)
            for run in [run for run in pending if run.needs in progress.failed]:
                pending.remove(run)
                progress.failed[run.folder] = "its cold start failed"
            while len(active) < parallel and (ready := next((run for run in pending if _ready(run, progress)), None)):
                pending.remove(ready)
                active[_launch(ready, base)] = ready
            progress.running = {run.folder: last_metrics(run.folder) for run in active.values()}
            show(progress)
            time.sleep(_POLL_S)
    show(progress)
    return progress


def last_metrics(folder: Path) -> dict[str, Any]:
    """The last whole line of a growing metrics.jsonl; empty if there is none yet."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return dict(json.loads(lines[-1])) if lines else {}


def log_of(run: Run) -> Path:
    """Where everything lies that the run's process printed."""
    return run.folder.with_name(f"{run.folder.name}.log")


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make a run what it is, flat; the address of the cold start is not one of them."""
    flat: dict[str, Any] = {}

    def walk(tree: Mapping[str, Any], prefix: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    walk(config, "")
    return {key: value for key, value in flat.items() if key not in ("description", "model.path")}


def _ready(run: Run, progress: Progress) -> bool:
    return run.needs is None or any(run.needs == other.folder for other in progress.done)


def _launch(run: Run, base: str) -> subprocess.Popen[bytes]:
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", "from cluster.cli import main; main()", "train", base, *run.overrides]
    # What an interrupted run left is of no use: it cannot be continued in a way that keeps the pairs equal.
    command += [f"--run-dir={run.folder}", "--overwrite"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with log_of(run).open("wb") as log:
        # A session of its own: Ctrl-C in the terminal reaches it once, through this process, and not twice.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def _note_end(run: Run, status: int, progress: Progress) -> None:
    if status == 0:
        progress.done.append(run)
    else:
        progress.failed[run.folder] = _reason(run, status)


def _reason(run: Run, status: int) -> str:
    lines = [line for line in log_of(run).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("pickaxe: ")] or lines[-1:] or [f"exit status {status}"]
    return f"{said[-1].removeprefix('pickaxe: ')} (see {log_of(run)})"


@contextmanager
def _processes() -> Iterator[dict[subprocess.Popen[bytes], Run]]:
    """The running trainings; if the body is left early they are interrupted, and end in order."""
    active: dict[subprocess.Popen[bytes], Run] = {}
    try:
        yield active
    finally:
        with uninterrupted():
            for process in active:
                process.send_signal(signal.SIGINT)
            for process in active:
                process.wait()
