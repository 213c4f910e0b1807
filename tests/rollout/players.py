"""Small real policies and a host of killable environments, for playing without an engine."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TypeVar

from envs.contract import Message, Step, Task
from envs.isolated import EnvProcess
from rollout.chat import ChatEncoder
from rollout.types import Completion, Sampling

_T = TypeVar("_T")
Write = Callable[[tuple[int, ...], Sampling], Sequence[int]]


class Writer:
    """A policy that writes what `write` says, cut at the budget, and remembers what it was asked.

    The log-prob of the token with id i is -i/1000, so that a log-prob in the wrong place is seen.
    """

    def __init__(self, end_id: int, write: Write) -> None:
        self._end_id = end_id
        self._write = write
        self.asked: list[tuple[tuple[int, ...], Sampling]] = []

    async def generate(self, token_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        self.asked.append((token_ids, sampling))
        taken = tuple(self._write(token_ids, sampling))[: sampling.max_tokens]
        await asyncio.sleep(0)  # siblings take turns, as they do with an engine
        return Completion(
            token_ids=taken, logp_old=tuple(map(logp, taken)), first_version=3, last_version=3, stopped=taken[-1] == self._end_id
        )


def logp(token_id: int) -> float:
    return -token_id / 1000


def one_after_the_other(actions: Sequence[Sequence[int]]) -> Write:
    """The given actions in order."""
    left = iter(actions)
    return lambda token_ids, sampling: next(left)


def guesses(encoder: ChatEncoder) -> Write:
    """A guess drawn from the turn's seed and nothing else."""
    return lambda token_ids, sampling: encoder.action(f"guess({Random(sampling.seed).randint(1, 16)})")


class ProcessHost:
    """An `EnvHost` over one killable process, its calls in order; `names` are the attempts in the order of their start."""

    def __init__(self, process: EnvProcess) -> None:
        self._process = process
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.names: list[str] = []

    async def _call(self, call: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def start(self, episode: str, task: Task) -> tuple[Message, ...]:
        self.names.append(episode)
        return await self._call(self._process.start, episode, task)

    async def step(self, episode: str, text: str) -> Step:
        return await self._call(self._process.step, episode, text)

    async def close(self, episode: str) -> Mapping[str, float]:
        return await self._call(self._process.close, episode)
