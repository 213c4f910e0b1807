"""Which folder a run gets: the one that was asked for or the first free number of its recipe, and never one in use."""

import itertools
from contextlib import suppress
from pathlib import Path

from envs.errors import InputError

MARK = "config.yaml"
"""The file that makes a folder a run."""


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise `InputError` unless a run may write into `path`: it is absent, empty, or an older run that `overwrite` gives up."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{path} exists; give another --run-dir, or --overwrite to delete the run in it and start anew")
    if not (path / MARK).is_file():
        raise InputError(f"{path} is not the folder of a run (it has no {MARK}), so --overwrite does not delete it; give another")


def claim(recipe: str, runs: Path = Path("runs")) -> Path:
    """Make `runs/<recipe>-<n>` with the first free n; two runs that start at the same time get two folders."""
    for number in itertools.count(1):
        path = runs / f"{recipe}-{number}"
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("there is always another number")
