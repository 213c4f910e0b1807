"""Groups whose environment failed, told to whom it concerns: each in the log, the first of each kind in view."""

import logging
from collections.abc import Sequence

from cluster.show.live import LiveView
from rollout.play import GroupFailure

_log = logging.getLogger("pickaxe")


class FailureReport:
    """What has been said of the failures of one run."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._shown: set[str] = set()

    def report(self, where: str, failures: Sequence[GroupFailure]) -> None:
        """Log every failure, and show the first of a kind that has not been seen yet. `where` says what was being played."""
        for failure in failures:
            words = f"{where}: group {failure.group} (task {failure.task.id}) was dropped, {failure.kind}: {failure.message}"
            _log.warning(words)
            if failure.kind not in self._shown:
                self._shown.add(failure.kind)
                self._view.message(f"{words}. More of this kind are in log.txt only, and counted as failure/{failure.kind}")
