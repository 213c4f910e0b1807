"""An environment that fails on request: the action names the fault."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from envs.contract import EnvSpec, Message, Player, Step, Task
from envs.metrics import Reduction


class Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class UnshowableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Faulty:
    def __init__(self, task: Task) -> None:
        self._turns = 0
        self._fault_at = task.data.get("fault_at")
        self._fail_if("make")

    def _fail_if(self, place: str) -> None:
        if self._fault_at == place:
            raise ValueError(f"refused at {place}")

    def start(self) -> Any:
        self._fail_if("start")
        return "hello" if self._fault_at == "messages" else (Message(role="user", content="Break something."),)

    def step(self, text: str) -> Any:
        self._turns += 1
        match text.split():
            case ["raise"]:
                raise RuntimeError("out of cheese")
            case ["raise-unshowable"]:
                raise UnshowableError
            case ["hang"]:
                # Deaf to every polite signal, with a child of its own, and never giving up the interpreter's lock for long.
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                while True:
                    pass
            case ["spawn-and-hang", path]:
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                Path(path).write_text(f"{os.getpid()} {child.pid}")
                while True:
                    time.sleep(1)
            case ["exit"]:
                os._exit(3)
            case ["sys-exit"]:
                sys.exit("enough")
            case ["segfault"]:
                os.kill(os.getpid(), signal.SIGSEGV)
            case ["slow", seconds]:
                time.sleep(float(seconds))
            case ["return-tuple"]:
                return ("observation", 1.0)
            case ["return-lambda"]:
                return Step(observation=lambda: "later", reward=0.0)  # type: ignore[arg-type]
            case ["return-bool"]:
                return Step(observation="", reward=True)
            case ["return-nan"]:
                return Step(observation="", reward=float("nan"))
            case ["return-huge"]:
                return Step(observation="", reward=10**5000)
            case ["write-into-the-pipe", words]:
                self._write_everywhere(words.encode() + b"\n")
            case ["forge", reward]:
                forged = b'{"answer": {"observation": "x", "reward": %b, "end": null, "valid": true}}\n'
                self._write_everywhere(forged % reward.encode())
        return Step(observation=f"{os.getpid()} {self._turns}")

    def _write_everywhere(self, line: bytes) -> None:
        for link in Path("/proc/self/fd").iterdir():
            if int(link.name) > 2:
                try:
                    os.write(int(link.name), line)
                except OSError:
                    continue

    def summary(self) -> Mapping[str, float]:
        self._fail_if("summary")
        return {"turns": float(self._turns)}


class Silent:
    def act(self, observation: str | None) -> str:
        return "nothing"


def silent(task: Task, seed: int) -> Player:
    return Silent()


def tasks(params: Params, split: str, seed: int) -> Iterator[Task]:
    return iter([task_that_fails_at(None)])


def task_that_fails_at(place: str | None) -> Task:
    return Task(id="faulty", env="tests.envs.faulty:SPEC", split="train", level="", seed=0, data={"fault_at": place})


SPEC = EnvSpec(
    name="tests.envs.faulty:SPEC",
    summary="Fails on request.",
    params=Params,
    tasks=tasks,
    make=Faulty,
    players={"oracle": silent, "plausible": silent, "random": silent},
    metrics={"turns": Reduction.MEAN},
    max_turns=lambda params: 100,
    best_success=lambda params: 1.0,
)
