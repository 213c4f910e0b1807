"""A run up to its first RL step: what `pickaxe preflight` and `pickaxe selfcheck` look at. Nothing of it is kept."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cluster.actors import running
from cluster.before_start import check_before_start
from cluster.config import RunConfig
from cluster.interrupt import terminated_as_interrupted
from cluster.live import LiveView
from cluster.loop import Training
from cluster.prepare import prepare_model
from cluster.run_folder import RunFolder


@contextmanager
def started(config: RunConfig, view: LiveView) -> Iterator[Training]:
    """Start every process of a run and make the policy that RL would begin with: the cold start is done if the recipe has one."""
    for sentence in check_before_start(config):
        view.message(f"note: {sentence}")
    with (
        tempfile.TemporaryDirectory(prefix="pickaxe-") as scratch,
        closing(RunFolder.create(Path(scratch) / "run", config, overwrite=False)) as folder,
        terminated_as_interrupted(),
    ):
        view.phase("preparing the model")
        model = prepare_model(config, folder.path)
        view.phase(f"starting {config.cluster.generators} generator(s), {config.cluster.learners} learner rank(s)")
        with running(config, model) as cluster, folder.sink(config) as sink:
            training = Training(config, folder, view, cluster, sink, model)
            training.start()
            yield training
