"""Every row of the method table improves a tiny policy through the real loop: number search with 8 numbers and 3 guesses."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from cluster.compare.comparison import load_comparison
from cluster.config import RunConfig
from cluster.load_config import load_config
from cluster.loop import train
from cluster.run_folder import RunFolder
from cluster.show.live import LiveView
from learner.methods import METHODS

pytestmark = pytest.mark.slow

STEPS = 40
BLIND = ("sft", "self_distill")
"""They never look at a reward: what they improve is how well a policy imitates, which the cold start shows."""


def config_of(*overrides: str) -> RunConfig:
    comparison = load_comparison("number-search")
    return load_config(comparison.base, [*comparison.overrides, f"steps={STEPS}", f"eval.every={STEPS}", "eval.samples=64", *overrides])


def run(folder: Path, config: RunConfig) -> dict[str, float]:
    view = LiveView(config.steps, title="test", console=Console(file=io.StringIO()))
    return train(config, RunFolder.create(folder, config, overwrite=False), view)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy that all methods start from: it has imitated the plausible player, who finds .62 of the numbers."""
    folder = tmp_path_factory.mktemp("start") / "run"
    untrained = run(folder.with_name("untrained"), config_of("steps=0", "cold_start.episodes=0"))
    assert untrained["eval/success"] < 0.05
    assert run(folder, config_of("steps=0"))["eval/success"] > 0.45
    return folder / "checkpoints" / "0"


@pytest.mark.parametrize("method", [method for method in METHODS if method not in BLIND])
def test_every_method_that_sees_rewards_improves_the_policy(method: str, start: Path, tmp_path: Path) -> None:
    changes = [f"algorithm.method={method}", f"model.path={start}", "cold_start.episodes=0"]
    summary = run(tmp_path / "run", config_of(*changes))
    assert summary["eval/success_before"] + 0.05 < summary["eval/success"] <= 7 / 8
