"""What several files of the command line share: the overrides argument, the --out folder, and how Ctrl-C and failures end a command."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cluster.interrupt import INTERRUPTED
from envs.errors import InputError

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Changes to the config, such as learner.lr=1e-4.")
]
Params = Annotated[list[str] | None, typer.Option("--param", metavar="K=V", help="A setting of the environment; give it again for more.")]
GpuMemory = Annotated[
    float | None, typer.Option("--gpu-memory", metavar="GIB", min=1, help="With --dry-run: memory of one GPU. [default: this machine's]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@contextmanager
def interrupted(words: str) -> Iterator[None]:
    """Ctrl-C in the body is answered with `words` and exit status 130."""
    try:
        yield
    except KeyboardInterrupt:
        print(words, file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def failing() -> Iterator[None]:
    """A `RunError` in the body is one message and exit status 1. Imports Ray."""
    from cluster.actors import RunError

    try:
        yield
    except RunError as error:
        print(f"pickaxe: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def make_folder(folder: Path) -> Path:
    """The folder of --out, made if it is not there. Raises `InputError` if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; give --out another one") from error
    return folder
