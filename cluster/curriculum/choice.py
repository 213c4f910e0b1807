"""How a curriculum chooses: the environment's own mixture, a climb from level to level, or what is solved at times and not always."""

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Any, Protocol

from cluster.curriculum.config import CurriculumConfig
from cluster.curriculum.draws import WHOLE, Draws
from envs.contract import Task
from rollout.play import sampling_seed
from rollout.types import Group

_CANDIDATES = 16
_VISITS = 2
_MOST_TASKS = 4096


class Chooser(Protocol):
    """Chooses the tasks of a step one by one, and learns from what became of them."""

    def choose(self) -> Task:
        """The next task."""
        ...

    def observe(self, groups: Sequence[Group]) -> dict[str, float]:
        """Take the groups of a step into account for the choices after it; returns metrics."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that choices depend on beside config and draws, in plain JSON types."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Choose on as the chooser did whose state this is."""
        ...


class Fixed:
    """The environment's own stream."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def choose(self) -> Task:
        """See `Chooser`."""
        return self._draws.draw(WHOLE)

    def observe(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `Chooser`."""
        return {}

    def state(self) -> dict[str, Any]:
        """See `Chooser`."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Chooser`."""


class Threshold:
    """The current level, and with a share of `keep` the levels before it; the next one begins at `advance_at` over a whole window.

    A level is never gone back to: its success would have to fall after what was learned at the next one, which `keep` is there to prevent.
    """

    def __init__(self, settings: CurriculumConfig, levels: tuple[str, ...], draws: Draws) -> None:
        self._settings, self._levels, self._draws = settings, levels, draws
        self._level = self._chosen = 0
        self._recent: list[float] = []

    def choose(self) -> Task:
        """See `Chooser`. Of n tasks since the level began, `keep * n` rounded down are of earlier levels."""
        kept = share_due(self._chosen, self._settings.keep) if self._level else None
        self._chosen += 1
        return self._draws.draw(self._levels[self._level if kept is None else kept % self._level])

    def observe(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `Chooser`. `curriculum/level` is the index of the level that comes next, `curriculum/success` its success so far."""
        window, level = self._settings.window, self._levels[self._level]
        self._recent = [*self._recent, *(success(group) for group in groups if group.task.level == level)][-window:]
        if len(self._recent) == window and fmean(self._recent) >= self._settings.advance_at and self._level + 1 < len(self._levels):
            self._level, self._chosen, self._recent = self._level + 1, 0, []
        return {"curriculum/level": float(self._level)} | ({"curriculum/success": fmean(self._recent)} if self._recent else {})

    def state(self) -> dict[str, Any]:
        """See `Chooser`."""
        return {"level": self._level, "chosen": self._chosen, "recent": list(self._recent)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Chooser`."""
        self._level, self._chosen, self._recent = state["level"], state["chosen"], list(state["recent"])


class Band:
    """Levels, and tasks that come again, whose success is estimated to lie in `low..high`; what was never played is taken to do so.

    Where no level does, the nearest one is played. The estimates are those of a policy that changes, so they forget: a level's is
    over `window` groups, a task's over its last two.
    """

    def __init__(self, settings: CurriculumConfig, levels: tuple[str, ...], draws: Draws, seed: int) -> None:
        self._settings, self._levels, self._draws, self._seed = settings, levels, draws, seed
        self._chosen = 0
        self._by_level: dict[str, list[float]] = {}
        self._by_task: dict[str, list[float]] = {}

    def choose(self) -> Task:
        """See `Chooser`."""
        number, self._chosen = self._chosen, self._chosen + 1
        explored = share_due(number, self._settings.explore)
        if explored is not None:
            return self._draws.draw(self._levels[explored % len(self._levels)])
        away = {level: self._away(self._of_level(level)) for level in self._levels}
        nearest = [level for level in self._levels if away[level] == min(away.values())]
        level = Random(sampling_seed(self._seed, "band", number)).choice(nearest)
        # A level was judged as a whole, so a task of it that was never played is as good as any.
        best = self._draws.draw(level)
        for _ in range(_CANDIDATES - 1):
            if not (least := self._away(self._of_task(best, level))):
                break
            task = self._draws.draw(level)
            if self._away(self._of_task(task, level)) < least:
                best = task
        return best

    def observe(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `Chooser`. `curriculum/in_band` is the share of the groups whose success lay in the band."""
        for group in groups:
            level, task, solved = group.task.level, group.task.id, success(group)
            self._by_level[level] = [*self._by_level.get(level, ()), solved][-self._settings.window :]
            # Taken out and put in again, so that the one that was played longest ago stands first.
            self._by_task[task] = [*self._by_task.pop(task, ()), solved][-_VISITS:]
            if len(self._by_task) > _MOST_TASKS:
                del self._by_task[next(iter(self._by_task))]
        inside = sum(self._settings.low <= success(group) <= self._settings.high for group in groups)
        return {"curriculum/in_band": inside / len(groups)}

    def state(self) -> dict[str, Any]:
        """See `Chooser`."""
        return {
            "chosen": self._chosen,
            "by_level": dict(self._by_level),
            "by_task": [[task, shares] for task, shares in self._by_task.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Chooser`."""
        self._chosen, self._by_level, self._by_task = state["chosen"], dict(state["by_level"]), dict(state["by_task"])

    def _of_level(self, level: str) -> float | None:
        """A level's success; it is taken with one group more at one half, so that one unlucky group does not decide."""
        shares = self._by_level.get(level)
        return (sum(shares) + 0.5) / (len(shares) + 1) if shares else None

    def _of_task(self, task: Task, chosen: str) -> float | None:
        """A task's success; of one that was never played it is its level's, if it was not chosen by its level."""
        if task.id in self._by_task:
            return fmean(self._by_task[task.id])
        return self._of_level(task.level) if chosen == WHOLE else None

    def _away(self, success: float | None) -> float:
        """How far a success lies outside the band; 0 if nothing is known of it."""
        return 0.0 if success is None else max(self._settings.low - success, success - self._settings.high, 0.0)


def success(group: Group) -> float:
    """The share of the siblings that solved the task."""
    return fmean(episode.solved for episode in group.trajectories)


def share_due(number: int, share: float) -> int | None:
    """Spread a share over a sequence: how many of the share came before item `number`, if that item is one of them, else None.

    >>> [share_due(number, 0.4) for number in range(7)]
    [None, None, 0, None, 1, None, None]
    """
    before = math.floor(number * share)
    return before if math.floor((number + 1) * share) > before else None
