"""A run up to its first RL step, for looking at: `pickaxe preflight` and `pickaxe selfcheck` begin so. Nothing of it is kept."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cluster.checks.before_start import check_before_start
from cluster.config import RunConfig
from cluster.interrupt import terminated_as_interrupted
from cluster.loop import Training, started
from cluster.run_folder import RunFolder
from cluster.show.live import LiveView


@contextmanager
def rehearsed(config: RunConfig, view: LiveView) -> Iterator[Training]:
    """Check the config, then `loop.started` in a folder that goes away with the body."""
    for sentence in check_before_start(config):
        view.message(f"note: {sentence}")
    with (
        tempfile.TemporaryDirectory(prefix="pickaxe-") as scratch,
        closing(RunFolder.create(Path(scratch) / "run", config, overwrite=False)) as folder,
        terminated_as_interrupted(),
        started(config, folder, view) as training,
    ):
        yield training
