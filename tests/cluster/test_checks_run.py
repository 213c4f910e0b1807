"""`pickaxe preflight` and `pickaxe selfcheck` on real parts: Ray actors, vLLM, DeepSpeed, on the CPU."""

import json
from pathlib import Path

import matplotlib.image
import pytest

from tests.cluster.command_line import status
from tests.cluster.test_real_run import TINY

pytestmark = pytest.mark.usefixtures("elsewhere")

RECIPE = "number-search-tiny"


def test_a_preflight_of_an_untrained_policy_says_that_it_is_too_early(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["preflight", RECIPE, *TINY, "--tasks", "5", "--out", "seen", "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["groups"] == sum(seen["histogram"]) == 8, "whole steps of 4 groups"
    assert len(seen["histogram"]) == 4 + 1 and seen["compares_siblings"]
    assert seen["success"]["low"] <= seen["success"]["value"] < 0.1 < seen["invalid_turns"] + seen["cut_turns"]
    subjects = {one["subject"] for one in seen["advice"]}
    assert "too_hard" in subjects and subjects & {"format", "turn_limit"} and not any(one["good"] for one in seen["advice"])
    assert seen["seconds"]["step"] == pytest.approx(sum(seen["seconds"][name] for name in ("generate", "learn", "push")))
    assert min(seen["seconds"].values()) > 0
    assert matplotlib.image.imread("seen/preflight.png").shape[1] > 1000
    assert [path.name for path in Path().rglob("*")] == ["seen", "preflight.png"], "nothing else is written"


def test_a_selfcheck_fails_where_it_should_and_only_there(capsys: pytest.CaptureFixture[str]) -> None:
    # With a constant baseline failures have credit, so that an untrained policy has a gradient.
    method = ("algorithm.method=reinforce", "algorithm.baseline=constant", "rollout.temperature=0.7")
    assert status(["selfcheck", RECIPE, *TINY, *method, "learner.micro_batch_tokens=512", "learner.max_logprob_gap=1e-12", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"] and not found["logprobs"]["passed"]
    assert 0 < found["logprobs"]["mean_gap"] <= found["logprobs"]["max_gap"] < 1e-4, "at the sampler's own temperature"
    assert {step["ranks"] for step in found["steps"]} == {1, 2} and len(found["steps"]) >= 6
    assert all(step["passed"] and step["difference"] < 1e-5 for step in found["steps"])
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("command", ["preflight", "selfcheck"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["number-search-tnyi"], "did you mean 'number-search-tiny'?"),
        ([RECIPE, "learner.lrr=1"], "unknown key 'learner.lrr'"),
        ([RECIPE, "model.path=./absent"], "does not exist"),
        (["run"], "has no exported policy under checkpoints/"),
    ],
)
def test_bad_input_is_one_message_and_status_2(command: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text("steps: 1")
    assert status([command, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and "Traceback" not in captured.err


def test_a_folder_that_cannot_be_made_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").write_text("")
    assert status(["preflight", RECIPE, "--out", "taken"]) == 2
    assert "cannot make the folder taken" in capsys.readouterr().err
