"""The folder of a run: who may write it, and what lies where in it."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.config import RunConfig
from cluster.load_config import dump_config
from cluster.run_dir import MARK, check_free
from cluster.sinks import MetricSink
from cluster.transcripts import write_trajectories
from envs.errors import InputError
from learner.credit import FloatArray
from rollout.chat import ChatEncoder
from rollout.types import Group


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """`config.yaml metrics.jsonl summary.json curve.png report.html log.txt tensorboard/ trajectories/ checkpoints/ model/`."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, overwrite: bool) -> "RunFolder":
        """Make the folder and write the resolved config into it.

        Raises `InputError` if it exists: a run is never mixed with an older one. `overwrite` deletes an older run first, and
        refuses to delete a folder that is not a run.
        """
        check_free(path, overwrite=overwrite)
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / MARK).write_text(dump_config(config))
        return cls(path=path)

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

    def write_trajectories(self, step: int, groups: Sequence[Group], credits: Sequence[FloatArray], encoder: ChatEncoder) -> None:
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
