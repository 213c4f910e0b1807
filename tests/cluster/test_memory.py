"""The memory of a tree of processes: shared pages once, descendants too, and what was given back as the peak."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.memory import memory_metrics

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="needs Linux's /proc")
GIB = 0.25
SIZE = int(GIB * 2**30)


@contextmanager
def running(code: str) -> Iterator[int]:
    """A process that has run `code`, which says when it is done."""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "done\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


def test_memory_that_three_generations_share_counts_once() -> None:
    share = f"""
import mmap, os, sys
pages = mmap.mmap(-1, {SIZE})
pages.write(b"x" * {SIZE})
youngest = all(os.fork() == 0 for _ in range(2))
assert pages[::4096].count(b"x") == {SIZE} // 4096
if youngest: print("done", flush=True)
sys.stdin.read()
"""
    with running(share) as pid:
        memory = memory_metrics(pid)
    assert GIB < memory["memory/total_gib"] < 1.5 * GIB


def test_memory_that_was_given_back_is_in_the_peak() -> None:
    with running(f"import sys; x = b'x' * {SIZE}; del x; print('done', flush=True); sys.stdin.read()") as pid:
        memory = memory_metrics(pid)
    assert memory["memory/total_gib"] < 0.2 * GIB
    assert GIB < memory["memory/peak_gib"] < 1.2 * GIB
