"""Scripted players of number search. They read the range from the task and the rest from the replies, never the secret."""

from collections.abc import Callable, Mapping
from random import Random

from envs.contract import Player, Task


class _Searcher:
    """Keeps the integers `low..high` that fit all replies so far and lets `choose` pick the next guess."""

    def __init__(self, task: Task, seed: int, choose: "Callable[[_Searcher], int]") -> None:
        self.numbers = int(task.data["numbers"])
        self.low, self.high = 1, self.numbers
        self.random = Random(seed)
        self._choose = choose
        self._guess = 0

    def act(self, observation: str | None) -> str:
        """The next guess, after taking in the reply to the last one."""
        if observation == "higher":
            self.low = max(self.low, self._guess + 1)
        elif observation == "lower":
            self.high = min(self.high, self._guess - 1)
        self._guess = self._choose(self)
        return f"guess({self._guess})"


def oracle(task: Task, seed: int) -> Player:
    """Binary search by the middle: the optimum, `min(N, 2^k - 1)` of N secrets."""
    return _Searcher(task, seed, lambda searcher: (searcher.low + searcher.high) // 2)


def plausible(task: Task, seed: int) -> Player:
    """Uniform among the integers that fit all replies so far."""
    return _Searcher(task, seed, lambda searcher: searcher.random.randint(searcher.low, searcher.high))


def uniform(task: Task, seed: int) -> Player:
    """Uniform on 1..N, blind to the replies."""
    return _Searcher(task, seed, lambda searcher: searcher.random.randint(1, searcher.numbers))


PLAYERS: Mapping[str, Callable[[Task, int], Player]] = {"oracle": oracle, "plausible": plausible, "random": uniform}
