"""Which processes a run has started, found by a mark that they all inherit, so that none escapes by losing its parent."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psutil

_NAME = "PICKAXE_TEST_MARK"


@contextmanager
def marked() -> Iterator[str]:
    """Processes that are started in the body carry the mark."""
    mark, before = uuid4().hex, os.environ.get(_NAME, "")
    os.environ[_NAME] = mark
    try:
        yield mark
    finally:
        os.environ[_NAME] = before


def alive(mark: str) -> list[psutil.Process]:
    """All processes with the mark, this one left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(_NAME) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def left(mark: str, patience_s: float = 15.0) -> list[str]:
    """What is still alive after some patience, as text."""
    deadline = time.monotonic() + patience_s
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"{process.pid} {process.name()}" for process in alive(mark)]
