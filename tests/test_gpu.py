"""A training on GPUs: vLLM's AsyncLLM on one, DeepSpeed on another, weights over NCCL, attested after every push."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cluster.load_config import load_config
from cluster.loop import train
from cluster.run_folder import RunFolder
from cluster.show.live import LiveView
from cluster.sinks import read_metrics

TOLERANCE = 1e-2
"""Kernels of a GPU add up in other orders than those of the learner, so that float32 differs by more than on a CPU."""
CONFIG = (
    "steps=2",
    "eval.every=2",
    "eval.samples=1",
    "cold_start.episodes=0",
    "algorithm.entropy_coef=0.1",  # an untrained policy never succeeds: only the bonus moves it
    "learner.warmup_steps=0",
    "learner.lr=3e-3",
    "generator.engine=async",
    "cluster.transfer=nccl",
    f"cluster.probe_tolerance={TOLERANCE}",
    f"learner.max_logprob_gap={TOLERANCE}",
)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, one for the generator and one for the learner")
def test_a_training_on_gpus_is_attested(tmp_path: Path) -> None:
    config = load_config("number-search-tiny", list(CONFIG))
    view = LiveView(config.steps, title="test", console=Console(file=io.StringIO()))
    train(config, RunFolder.create(tmp_path / "run", config, overwrite=False), view)
    steps = read_metrics(tmp_path / "run")[1:]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["sync/probe_max_abs_diff"] < TOLERANCE < step["sync/probe_moved"] for step in steps)
