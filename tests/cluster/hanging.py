"""An environment in which one task hangs for ever at the action that its players never take, and that succeeds everywhere else.

All tasks look the same, so that a policy which imitates the players takes it.
"""

import time
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ConfigDict

from envs.contract import End, EnvSpec, Message, Player, Step, Task

NAME = "tests.cluster.hanging:SPEC"
TASKS = 4
HANGS = 2


class Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hanging:
    def __init__(self, task: Task) -> None:
        self._hangs = task.data["number"] == HANGS

    def start(self) -> tuple[Message, ...]:
        return (Message(role="user", content="Say yes or no."),)

    def step(self, text: str) -> Step:
        if self._hangs and text == "yes":
            time.sleep(3600)
        return Step(observation="done", reward=float(text == "yes"), end=End.SOLVED if text == "yes" else End.FAILED)

    def summary(self) -> Mapping[str, float]:
        return {}


class Says:
    def __init__(self, word: str) -> None:
        self._word = word

    def act(self, observation: str | None) -> str:
        return self._word


def careful(task: Task, seed: int) -> Player:
    return Says("no" if task.data["number"] == HANGS else "yes")


def tasks(params: Params, split: str, seed: int) -> Iterator[Task]:
    numbers = range(TASKS) if split == "train" else range(HANGS)
    while True:
        for number in numbers:
            yield Task(id=f"hanging/{number}", env=NAME, split=split, level="", seed=0, data={"number": number})
        if split != "train":
            return


SPEC = EnvSpec(
    name=NAME,
    summary="Hangs.",
    params=Params,
    tasks=tasks,
    make=Hanging,
    players=dict.fromkeys(("oracle", "plausible", "random"), careful),
    metrics={},
    max_turns=lambda params: 1,
    best_success=lambda params: 1.0,
)
