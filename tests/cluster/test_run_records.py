"""What is written of a run can be read again: metrics and transcripts, after a crash too."""

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cluster.show.transcripts import read_trajectories, write_trajectories
from cluster.sinks import MetricSink, read_metrics
from envs.contract import End, Task
from envs.errors import InputError
from rollout.types import Group, Trajectory, Turn
from tests.cluster.episodes import CREDITS, GROUP, HOSTILE, WORDS


def test_metrics_round_trip_with_null_for_what_json_cannot_say(tmp_path: Path) -> None:
    with MetricSink(tmp_path) as sink:
        sink.write(1, {"a/b": 0.1, "a/nan": math.nan, "a/inf": math.inf})
        assert read_metrics(tmp_path) == [{"step": 1, "a/b": 0.1, "a/nan": None, "a/inf": None}], "not flushed"
        sink.write(2, {"a/b": 0.2})
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[1] == '{"step": 2, "a/b": 0.2}'
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("a/b")] == [(1, 0.1), (2, 0.2)]
    assert events.Tags()["scalars"] == ["a/b"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n{"step": 3, "a"')
    assert read_metrics(tmp_path) == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}]


def test_metrics_that_are_not_metrics_are_refused_by_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no .*metrics\.jsonl"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nrubbish\n{"step": 2}\n')
    with pytest.raises(InputError, match="line 2"):
        read_metrics(tmp_path)


def test_an_unusable_tracker_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected none, wandb or trackio"):
        MetricSink(tmp_path, tracker="mlflow")  # type: ignore[arg-type]
    missing = [name for name in ("wandb", "trackio") if find_spec(name) is None]
    for name in missing:
        with pytest.raises(InputError, match=rf"pip install {name}.*output\.tracker=none"):
            MetricSink(tmp_path, tracker=name)  # type: ignore[arg-type]


def test_transcripts_align_credit_with_sampled_tokens_only(tmp_path: Path) -> None:
    path = tmp_path / "trajectories" / "1.jsonl"
    write_trajectories(path, [GROUP], CREDITS, lambda ids: "".join(WORDS[i] for i in ids))
    first, second = read_trajectories(path)
    assert second["credit"] == [None, None, None, -0.5, -0.25, None, None, 0.0, -0.5]
    assert second["logp_old"] == [None, None, None, -0.7, -0.01, None, None, -1.5, -0.02]
    assert (first["token_ids"], first["action_mask"]) == ([5, 6, 7, 40, 2, 8, 9, 41, 2], [0, 0, 0, 1, 1, 0, 0, 1, 1])
    assert first["tokens"] == [WORDS[token] for token in first["token_ids"]]
    assert second["turns"][1] == {
        "start": 7, "length": 2, "text": HOSTILE, "observation": HOSTILE, "reward": 0.0, "valid": False, "versions": [3, 4],
    }  # fmt: skip
    assert (first["reward"], first["end"], second["end"], second["summary"]) == (1.0, "solved", "out_of_turns", {"repeats": 1.0})
    assert [entry.name for entry in path.parent.iterdir()] == ["1.jsonl"]


def test_a_failed_write_leaves_the_older_transcripts_whole(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    write_trajectories(path, [GROUP])
    before = path.read_bytes()

    def broken(token_ids: object) -> str:
        raise OSError("no tokenizer")

    with pytest.raises(OSError, match="no tokenizer"):
        write_trajectories(path, [GROUP], None, broken)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\N{REPLACEMENT CHARACTER}"), min_size=2, max_size=9))
def test_byte_tokens_give_whole_characters(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """One token a byte, the worst case of a byte-level tokenizer: the pieces must still join to the text."""
    token_ids = tuple(text.encode())
    turn = Turn(start=1, token_ids=token_ids[1:], logp_old=(-0.1,) * (len(token_ids) - 1), text=text, observation="", reward=1.0,
                valid=True, first_version=0, last_version=0)  # fmt: skip
    episode = Trajectory(
        task=Task(id="toy", env="toy", split="train", level="1", seed=0), group=0, member=0, seed=0, token_ids=token_ids,
        action_mask=(0,) + (1,) * (len(token_ids) - 1), logp_old=(0.0, *turn.logp_old), turns=(turn,), end=End.SOLVED,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("bytes") / "1.jsonl"
    write_trajectories(path, [Group(trajectories=(episode,))], None, lambda ids: bytes(ids).decode(errors="replace"))
    [record] = read_trajectories(path)
    assert len(record["tokens"]) == len(token_ids)
    assert "".join(record["tokens"]) == text
