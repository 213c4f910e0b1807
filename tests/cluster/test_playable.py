"""Environments that are not built in: the controller plays them where a fault of theirs is a message and not a hang."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from cluster.config import RunConfig
from cluster.load_config import load_config
from cluster.playable import playable
from cluster.prepare import environment_texts
from envs.contract import EnvSpec, Player, Task
from envs.errors import InputError
from tests.envs import faulty


class Writes:
    def __init__(self, word: str) -> None:
        self._word = word

    def act(self, observation: str | None) -> str:
        return self._word


def spec_that(player: Any, place: str | None = None) -> EnvSpec:
    """The faulty environment with a player who asks for a fault, or one that fails at a place by itself."""

    def tasks(params: BaseModel, split: str, seed: int) -> Iterator[Task]:
        while True:
            yield faulty.task_that_fails_at(place)

    return replace(faulty.SPEC, tasks=tasks, players=dict.fromkeys(("oracle", "plausible", "random"), player))


def writes(word: str) -> Any:
    def player(task: Task, seed: int) -> Player:
        return Writes(word)

    return player


HANGS, RAISES = spec_that(writes("hang")), spec_that(writes("raise"))
REFUSES, ENDLESS = spec_that(writes("y"), "start"), spec_that(writes("y"))


def config(name: str) -> RunConfig:
    overrides = [f"env.name=tests.cluster.test_playable:{name}", "env.params={}", "cluster.env_workers=1", "cluster.env_deadline_s=0.5"]
    return load_config("number-search-tiny", overrides)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("HANGS", r"timed_out: step gave no answer in 0.5 s \(task faulty\)"),
        ("RAISES", r"raised: RuntimeError: out of cheese \(task faulty\)"),
        ("REFUSES", r"raised: ValueError: refused at start \(task faulty\)"),
        ("ENDLESS", "did not end an episode within 100 turns"),
    ],
)
def test_a_fault_while_a_scripted_player_plays_is_a_message(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        list(environment_texts(config(name)))


def test_the_environment_is_not_in_this_process() -> None:
    with playable(config("ENDLESS")) as spec:
        env = spec.make(faulty.task_that_fails_at(None))
        env.start()
        pid, turn = env.step("y").observation.split()
    assert (int(pid) != os.getpid(), turn) == (True, "1")
