"""Demonstrations as a file: the same tokens as played ones, bad files refused by line, and the two commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.checks.before_start import check_demos
from cluster.demos import demonstrations_of, player_seed, read_demos, record
from cluster.load_config import load_config
from cluster.prepare import demonstrations, policy_tokenizer, train_tasks
from envs.errors import InputError
from rollout.chat import ChatEncoder
from tests.cluster.command_line import status

pytestmark = pytest.mark.usefixtures("elsewhere")

PROMPT = {"role": "user", "content": "Find it."}
ACTION = {"role": "assistant", "content": "guess(8)"}
REPLY = {"role": "tool", "content": "lower"}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["rollout.max_context_tokens=48"],
        ["env={name: crafting, params: {levels: L2}}", "rollout.max_context_tokens=600", "model.tiny.max_position=700"],
    ],
)
def test_episodes_of_a_file_are_the_tokens_of_played_ones(overrides: list[str]) -> None:
    config = load_config("number-search-tiny", overrides)
    encoder = ChatEncoder(policy_tokenizer(config))
    played = demonstrations(config, encoder, 12, "plausible")
    tasks = zip(train_tasks(config), range(12), strict=False)
    lines = [record(config.env.spec, config.env_params, task, "plausible", player_seed(0, number), "tool") for task, number in tasks]
    Path("demos.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    for (ours,), (theirs,) in zip(
        (group.trajectories for group in demonstrations_of(read_demos(Path("demos.jsonl")), config, encoder)),
        (group.trajectories for group in played),
        strict=True,
    ):
        assert (ours.token_ids, ours.action_mask, ours.end) == (theirs.token_ids, theirs.action_mask, theirs.end)
        assert (ours.reward, ours.task.id, ours.group) == (theirs.reward, theirs.task.id, theirs.group)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 is not JSON"),
        ([], "line 2: expected an object with messages"),
        ({"messages": []}, "line 2: expected an object with messages"),
        ({"messages": [PROMPT, {"role": "agent", "content": "x"}]}, "expected role, one of system, user, assistant, tool"),
        ({"messages": [PROMPT, {"role": "assistant", "content": None}]}, "and content, a text"),
        ({"messages": [PROMPT]}, "roles are user; expected a prompt"),
        ({"messages": [ACTION]}, "roles are assistant; expected a prompt"),
        ({"messages": [PROMPT, ACTION, REPLY]}, "an assistant's message at the end"),
        ({"messages": [PROMPT, ACTION, ACTION, REPLY, ACTION]}, "assistant and observation in turn"),
        ({"messages": [PROMPT, ACTION], "reward": "1"}, "reward is '1'"),
        ({"messages": [PROMPT, ACTION], "end": "won"}, "end is 'won'"),
    ],
)
def test_a_bad_line_is_named(line: Any, why: str) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    Path("demos.jsonl").write_text(json.dumps({"messages": [PROMPT, ACTION]}) + "\n" + text)
    with pytest.raises(InputError) as error:
        read_demos(Path("demos.jsonl"))
    assert why in str(error.value) and "demos.jsonl" in str(error.value)


def test_files_that_are_not_there_empty_or_of_another_environment() -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_demos(Path("nothing.jsonl"))
    Path("empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="has no episode"):
        read_demos(Path("empty.jsonl"))
    Path("other.jsonl").write_text(json.dumps({"messages": [PROMPT, ACTION], "env": "crafting"}))
    check_demos(Path("other.jsonl"), "crafting")
    with pytest.raises(InputError, match=r"episodes of crafting; expected those of env.name=number_search"):
        check_demos(Path("other.jsonl"), "number_search")


def test_a_run_refuses_a_bad_file_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["train", "number-search-tiny", "cold_start.file=none.jsonl", "--run-dir", "run"]) == 2
    assert "none.jsonl" in capsys.readouterr().err and not Path("run").exists()


def test_the_command_writes_what_is_asked_for_and_replaces_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["demos", "crafting", "--level", "L2", "--player", "random", "--only-solved", "--count", "5", "--observation-role", "user"]
    assert status([*command, "--out", "a/demos.jsonl"]) == 0
    episodes = read_demos(Path("a/demos.jsonl"))
    assert [(episode["level"], episode["end"], episode["reward"]) for episode in episodes] == [("L2", "solved", 1.0)] * 5
    assert {message["role"] for episode in episodes for message in episode["messages"]} == {"user", "assistant"}
    before = Path("a/demos.jsonl").read_bytes()
    assert status([*command, "--out", "a/demos.jsonl", "--seed", "1"]) == 2
    assert "exists" in capsys.readouterr().err and Path("a/demos.jsonl").read_bytes() == before
    assert status([*command, "--out", "a/demos.jsonl", "--seed", "1", "--overwrite"]) == 0
    assert Path("a/demos.jsonl").read_bytes() != before
    assert status([*command[:-2], "--player", "wizard", "--out", "b/demos.jsonl"]) == 2
    assert not Path("b").exists() and [path.name for path in Path("a").iterdir()] == ["demos.jsonl"]


def test_the_report_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["env", "number_search", "--json", "--player", "oracle"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["broken"] == [] and found["tasks"] == 16 and found["rows"][0]["success"] == 0.9375
    assert status(["env", "number_search", "--tasks", "8", "--split", "train"]) == 0
    out = capsys.readouterr().out
    assert "nothing broken was found" in out and "plausible" in out and "steps a second" in out
    for wrong, why in (
        ("--player=orcale", "did you mean 'oracle'"),
        ("--level=17-4", "no task of level"),
        ("--param=guesses=0", "guesses"),
    ):
        assert status(["env", "number_search", wrong]) == 2
        assert why in capsys.readouterr().err
