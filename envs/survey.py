"""What an environment is like, by its scripted players: how often they succeed, how long it takes, how fast it runs.

Everything is played in this process, so an environment that hangs hangs it too.
"""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from pydantic import BaseModel

from envs.contract import End, EnvSpec, Task
from envs.errors import InputError, did_you_mean

_DRAWS = 200
"""Tasks that are drawn for each one that is looked for, before its level counts as missing."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One player on the tasks of one level. `turns` are of all episodes; `optimal` is the oracle's mean on the same tasks."""

    player: str
    level: str
    episodes: int
    success: float
    turns: float
    optimal: float
    ends: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The rows, levels in the order of the tasks, and the speed of the environment alone in one process."""

    rows: tuple[Row, ...]
    steps_per_s: float
    seconds_per_task: float


def draw_tasks(spec: EnvSpec, params: BaseModel, *, split: str, seed: int, count: int, level: str | None = None) -> list[Task]:
    """The first `count` tasks of a split, of one level if named; fewer if the split has no more.

    Raises `InputError` for a split or a level that the environment does not have.
    """
    return list(islice(stream(spec, params, split=split, seed=seed, level=level, draws=_DRAWS * count), count))


def stream(spec: EnvSpec, params: BaseModel, *, split: str, seed: int, level: str | None, draws: int = 20_000) -> Iterator[Task]:
    """`EnvSpec.tasks`, only those of `level` if it is named. Raises `InputError` if none of the first `draws` is of it."""
    others: Counter[str] = Counter()
    found = False
    for task in spec.tasks(params, split, seed):
        if level is None or task.level == level:
            found = True
            yield task
            continue
        others[task.level] += 1
        if not found and others.total() >= draws:
            break
    if not found and level is not None:
        raise InputError(f"{spec.name} has no task of level {level!r} in its split {split}: {did_you_mean(level, sorted(others))}")


def survey(spec: EnvSpec, tasks: Sequence[Task], players: Sequence[str], seconds_per_task: float) -> Survey:
    """Play every task once with every player; the oracle is played too, for the optimal length."""
    clock = _Clock()
    played = {player: [_play(spec, task, player, seed, clock) for seed, task in enumerate(tasks)] for player in {*players, "oracle"}}
    levels = list(dict.fromkeys(task.level for task in tasks))
    rows = []
    for level in levels:
        of_level = [number for number, task in enumerate(tasks) if task.level == level]
        optimal = statistics.mean(played["oracle"][number][1] for number in of_level)
        for player in players:
            episodes = [played[player][number] for number in of_level]
            rows.append(
                Row(
                    player=player,
                    level=level,
                    episodes=len(episodes),
                    success=statistics.mean(end is End.SOLVED for end, _ in episodes),
                    turns=statistics.mean(turns for _, turns in episodes),
                    optimal=optimal,
                    ends=dict(Counter(end.value for end, _ in episodes)),
                )
            )
    return Survey(rows=tuple(rows), steps_per_s=clock.steps / clock.seconds, seconds_per_task=seconds_per_task)


class _Clock:
    """Seconds inside the environment, building included, and its steps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begun


def _play(spec: EnvSpec, task: Task, player: str, seed: int, clock: _Clock) -> tuple[End, int]:
    """How the episode ended, and after how many turns."""
    act, observation, turns = spec.players[player](task, seed).act, None, 0
    with clock.running():
        env = spec.make(task)
        env.start()
    while True:
        action = act(observation)
        with clock.running():
            step = env.step(action)
        turns += 1
        clock.steps += 1
        if step.end is not None:
            return step.end, turns
        observation = step.observation
