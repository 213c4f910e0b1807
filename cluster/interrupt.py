"""Ctrl-C and SIGTERM: the first one ends a run in order, and nothing interrupts that end, so that no process is left behind."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

_BOTH = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """In the body SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does."""
    with _handling({signal.SIGTERM: signal.default_int_handler}):
        yield


@contextmanager
def postponed() -> Iterator[None]:
    """In the body Ctrl-C and SIGTERM are only remembered; behind it they raise `KeyboardInterrupt`.

    Ray's start must not be left half-way, or processes stay behind that nothing ends. It also installs a handler that exits at
    once: what the body does to the handling of signals is undone.
    """
    heard: list[int] = []
    with _handling(dict.fromkeys(_BOTH, lambda number, frame: heard.append(number))):
        yield
    if heard:
        raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """In the body Ctrl-C and SIGTERM are answered with a word of patience and have no other effect."""
    with _handling(dict.fromkeys(_BOTH, _be_patient)):
        yield


def _be_patient(number: int, frame: FrameType | None) -> None:
    # print() may be what was interrupted, and it does not allow itself inside itself; a bare write does.
    os.write(2, b"\nending the processes, a few more seconds\n")


@contextmanager
def _handling(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return
    before = {number: signal.getsignal(number) for number in _BOTH}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
