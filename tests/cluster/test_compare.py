"""`pickaxe compare` as a person uses it: what it takes, what it refuses, and a real comparison that is not repeated."""

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.image
import pytest

from cluster.compare.comparison import comparison_names, load_comparison, parse_methods, runs, slug
from cluster.load_config import load_config
from envs.errors import InputError
from tests.cluster import command_line
from tests.cluster.test_real_run import TINY

pytestmark = pytest.mark.usefixtures("elsewhere")

RECIPE = "number-search-tiny"


def status(arguments: Sequence[str]) -> int:
    """The exit status of `pickaxe compare ARGUMENTS`."""
    return command_line.status(["compare", *arguments])


def test_methods_are_read_with_their_changes_and_named_after_them() -> None:
    assert parse_methods("rloo, reinforce:baseline=value,learner.lr=0.5,grpo:clip_high=0.28") == {
        "rloo": ("algorithm.method=rloo",),
        "reinforce baseline=value lr=0.5": ("algorithm.method=reinforce", "algorithm.baseline=value", "learner.lr=0.5"),
        "grpo clip_high=0.28": ("algorithm.method=grpo", "algorithm.clip_high=0.28"),
    }
    assert parse_methods("mine,rloo", {"mine": ["a=1"]}) == {"mine": ("a=1",), "rloo": ("algorithm.method=rloo",)}


@pytest.mark.parametrize("name", comparison_names())
def test_a_shipped_comparison_can_run(name: str) -> None:
    comparison = load_comparison(name)
    planned = runs(comparison, Path("out"))
    assert comparison.description and len(planned) == len(comparison.seeds) * (len(comparison.variants) + 1)
    assert len({run.folder for run in planned}) == len(planned)


def test_every_variant_begins_where_its_seed_ends_its_cold_start() -> None:
    planned = runs(load_comparison(RECIPE, "reinforce,rloo", "3,5", ["steps=7"]), Path("out"))
    starts, variants = planned[:2], planned[2:]
    assert [(run.variant, run.seed, run.config.steps) for run in starts] == [("start", 3, 0), ("start", 5, 0)]
    assert [(run.variant, run.seed) for run in variants] == [("reinforce", 3), ("rloo", 3), ("reinforce", 5), ("rloo", 5)]
    for run in variants:
        assert run.config.seed == run.seed and run.config.steps == 7 and run.config.cold_start.episodes == 0
        assert run.needs == Path(f"out/start/seed-{run.seed}") and run.config.model.path == f"{run.needs}/checkpoints/0"
        assert load_config(RECIPE, run.overrides) == run.config, "what is launched is what was checked"


def test_without_a_cold_start_there_is_nothing_to_share_but_the_seed() -> None:
    planned = runs(load_comparison(RECIPE, "rloo", "0", ["cold_start.episodes=0"]), Path("out"))
    assert [(run.variant, run.needs, run.config.model.path) for run in planned] == [("rloo", None, None)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["number-serch"], "did you mean 'number-search'?"),
        (["absent.yaml"], "no file absent.yaml"),
        ([RECIPE, "--methods", "rlo"], "unknown method 'rlo' in 'rlo': did you mean 'rloo'?"),
        ([RECIPE, "--methods", "rloo:baselin=value"], "variant 'rloo baselin=value': unknown key 'baselin'"),
        ([RECIPE, "--methods", "rloo:baseline=value"], "variant 'rloo baseline=value'"),
        ([RECIPE, "--methods", "rloo,rloo:env.params.numbers=8"], "all variants share seed, env, model, cold_start"),
        ([RECIPE, "--seeds", "0,one"], "expected whole numbers with commas between them"),
        ([RECIPE, "--seeds", "0,0"], "expected different numbers"),
        ([RECIPE, "learner.lrr=1"], "unknown key 'learner.lrr'"),
        (["broken.yaml"], "broken.yaml: variants.rloo"),
        (["same.yaml"], "need folders of different names"),
    ],
)
def test_bad_input_is_one_message_and_status_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.yaml").write_text(f"base: {RECIPE}\nvariants: {{rloo: 3}}")
    Path("same.yaml").write_text(f"base: {RECIPE}\nvariants: {{RLOO: [algorithm.method=rloo], rloo: [algorithm.method=rloo]}}")
    assert status(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1
    assert sorted(path.name for path in Path().iterdir()) == ["broken.yaml", "same.yaml"], "nothing is written before the input is checked"


def test_a_start_that_fails_is_reported_and_nothing_begins_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert status([RECIPE, "--methods", "reinforce,rloo", "--seeds", "0", "model.path=./absent", "--out", "out"]) == 1
    said = capsys.readouterr().err
    assert "failed: out/start/seed-0: " in said and "does not exist" in said and "out/start/seed-0.log" in said
    assert "failed: out/rloo/seed-0: its cold start failed" in said
    assert not Path("out/comparison.md").exists()


@pytest.mark.slow
def test_a_comparison_is_paired_and_never_repeats_a_finished_run(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["cold_start.episodes=64", "learner.minibatches=1", "steps=2", "eval.every=1"]
    overrides = [change for change in TINY if not change.startswith("cold_start")] + small
    arguments = [RECIPE, "--methods", "rloo", "--seeds", "4", "--out", "out", *overrides]
    assert status(arguments) == 0
    assert "wrote comparison.png, comparison.md and comparison.json into out" in capsys.readouterr().out
    start, rloo = (json.loads(Path(f"out/{name}/seed-4/summary.json").read_text()) for name in ("start", "rloo"))
    assert rloo["eval/success_before"] == start["eval/success"], "the same policy on the same tasks with the same noise"
    found = json.loads(Path("out/comparison.json").read_text())
    (row,) = found["rows"]
    assert (row["variant"], row["seeds"], row["after"]["value"]) == ("rloo", 1, rloo["eval/success"])
    assert found["curves"]["rloo"]["4"]["episodes"] == [0.0, 16.0, 32.0]
    assert "| rloo | 1 |" in Path("out/comparison.md").read_text()
    assert matplotlib.image.imread("out/comparison.png").shape[1] > 1000

    written = Path("out/rloo/seed-4/summary.json").stat().st_mtime_ns
    assert status([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert Path("out/rloo/seed-4/summary.json").stat().st_mtime_ns == written
    with pytest.raises(InputError, match=r"was run with learner\.lr=0\.001, and this comparison wants 0\.5"):
        from cluster.compare.runs import finished

        finished(runs(load_comparison(RECIPE, "rloo", "4", [*overrides, "learner.lr=0.5"]), Path("out"))[-1])


def test_names_become_folders() -> None:
    assert slug("reinforce, moving average") == "reinforce-moving-average"
