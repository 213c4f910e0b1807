"""The folder of a run: which one a run gets, who may write it, and what lies where in it."""

import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.config import RunConfig
from cluster.load_config import dump_config
from cluster.show.transcripts import write_trajectories
from cluster.sinks import MetricSink
from envs.errors import InputError
from rollout.chat import ChatEncoder
from rollout.types import Group

if TYPE_CHECKING:
    from learner.types import FloatArray

MARK = "config.yaml"
"""The file that makes a folder a run."""
LOCK = ".lock"
"""Locked by the run that writes the folder, whose process number it holds; the kernel unlocks it however that process ends."""


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise `InputError` unless a run may write into `path`: it is absent, empty, or an older run that `overwrite` gives up.

    A run that is still alive is never given up.
    """
    if (path / LOCK).is_file():
        os.close(_lock(path))
    _check_content(path, overwrite=overwrite)


def claim(recipe: str, runs: Path = Path("runs")) -> Path:
    """Make `runs/<recipe>-<n>` with the first free n; two runs that start at the same time get two folders."""
    for number in itertools.count(1):
        path = runs / f"{recipe}-{number}"
        with suppress(FileExistsError):
            with _writable(path):
                path.mkdir(parents=True)
            return path
    raise AssertionError("there is always another number")


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise InputError(
            f"the run folder {path} cannot be made: {error.strerror} ({error.filename}); give --run-dir a place that you may write"
        ) from error


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """`config.yaml metrics.jsonl summary.json curve.png report.html log.txt tensorboard/ trajectories/ checkpoints/ model/`.

    `lock` is the descriptor of the locked file: until `close`, or until this process ends, no other run gets the folder.
    """

    path: Path
    lock: int

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, overwrite: bool) -> "RunFolder":
        """Make the folder, lock it, and write the resolved config into it.

        Raises `InputError` if it exists: a run is never mixed with an older one. `overwrite` deletes an older run first, and
        refuses to delete a folder that is not a run, or whose run is still alive.
        """
        check_free(path, overwrite=overwrite)
        with _writable(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
        folder = cls(path=path, lock=lock)
        try:
            _check_content(path, overwrite=overwrite)  # again, as another run may have come and gone before the lock
            for child in _content(path):
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
            os.truncate(folder.lock, 0)
            os.write(folder.lock, str(os.getpid()).encode())
            (path / MARK).write_text(dump_config(config))
        except BaseException:
            folder.close()
            raise
        return folder

    def close(self) -> None:
        """Leave the folder to other runs."""
        os.close(self.lock)

    def sink(self, config: RunConfig) -> MetricSink:
        """Open the metrics of this run."""
        return MetricSink(
            self.path,
            tracker=config.output.tracker,
            project=config.output.project,
            run_name=self.path.name,
            config_dict=config.model_dump(mode="json"),
        )

    def checkpoint(self, step: int) -> Path:
        """Where the policy after `step` lies."""
        return self.path.absolute() / "checkpoints" / str(step)

    def write_trajectories(self, step: int, groups: Sequence[Group], credits: Sequence["FloatArray"], encoder: ChatEncoder) -> None:
        """Save the step's transcripts with the credit of every token."""
        rows = [row.tolist() for row in credits]
        decode = encoder.tokenizer.decode
        write_trajectories(self.path / "trajectories" / f"{step}.jsonl", groups, rows, lambda ids: str(decode(list(ids))))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def last_checkpoint(run: Path) -> Path:
    """The newest exported policy of a run. Raises `InputError` if there is none."""
    found = sorted((run / "checkpoints").glob("[0-9]*/config.json"), key=lambda path: int(path.parent.name))
    if not found:
        raise InputError(f"{run} has no exported policy under checkpoints/; the run did not finish, train it again")
    return found[-1].parent


def _content(path: Path) -> list[Path]:
    return [child for child in path.iterdir() if child.name != LOCK]


def _check_content(path: Path, *, overwrite: bool) -> None:
    if not path.exists() or (path.is_dir() and not _content(path)):
        return
    if not overwrite:
        raise InputError(f"{path} exists; give another --run-dir, or --overwrite to delete the run in it and start anew")
    if not (path / MARK).is_file():
        raise InputError(f"{path} is not the folder of a run (it has no {MARK}), so --overwrite does not delete it; give another")


def _lock(path: Path) -> int:
    """The descriptor of the folder's lock. Raises `InputError` if another run holds it."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        writer = os.read(lock, 20).decode()
        os.close(lock)
        raise InputError(f"{path}: a run is writing there (pid {writer}); wait for its end, stop it, or give another --run-dir") from None
    return lock
