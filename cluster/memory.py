"""How much memory a run takes, read from /proc: this process and all that it started, on this machine."""

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_KIB_PER_GIB = 2**20


def memory_metrics(root: int) -> dict[str, float]:
    """Memory in GiB of process `root` and its descendants; empty where there is no /proc/PID/smaps_rollup (Linux has it).

    `memory/total_gib` is the sum of their proportional set sizes: a page that n processes share counts 1/n in each, so once.
    `memory/peak_gib` adds by how much each one's resident set has been larger than it is now. Not all need have been largest at
    the same time, so these processes together took at most that much. Not counted are processes that have ended, those on other
    machines, and those of a Ray cluster that was there before the run (`cluster.address`).
    """
    total = peak = 0
    for pid in _tree(root):
        try:
            shared = _kib(_PROC / str(pid) / "smaps_rollup")["Pss"]
            status = _kib(_PROC / str(pid) / "status")
        except (OSError, KeyError):
            continue  # it has just ended, or is not ours to read
        total += shared
        peak += shared + status["VmHWM"] - status["VmRSS"]
    return {"memory/total_gib": total / _KIB_PER_GIB, "memory/peak_gib": peak / _KIB_PER_GIB} if total else {}


def _tree(root: int) -> Iterator[int]:
    """`root` and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            # The name in brackets may itself hold brackets and spaces; behind it are the state and the parent.
            parent = int((folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _kib(path: Path) -> dict[str, int]:
    """The lines `Name:   123 kB` of a file."""
    rows = (line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}
