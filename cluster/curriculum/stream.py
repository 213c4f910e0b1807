"""The order and the difficulty of the training tasks. What it depends on is explicit: the seed, and the groups it was told of.

Results may come late (`cluster.max_lag`): a choice goes by what was observed before it, in the order of the calls, so that the same run
draws the same tasks. Only groups sampled for a step are observed, none that was played again under other conditions.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from cluster.config import RunConfig
from cluster.curriculum.choice import Band, Chooser, Fixed, Threshold
from cluster.curriculum.draws import WHOLE, Draws
from envs.contract import Task
from envs.errors import InputError
from rollout.play import sampling_seed
from rollout.types import Group


class TaskStream:
    """The training tasks of one run: `step` for each step, `another` for a group that is played again, `observe` after each step."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._draws, self._steps = config, Draws(config), 0
        self._chooser = _chooser(config, self._draws)

    def step(self) -> list[Task]:
        """The tasks of the next step."""
        settings, number = self._config.curriculum, self._steps
        self._steps += 1
        if settings.counts is not None:
            tasks = [self._draws.draw(level) for level, count in settings.counts.items() for _ in range(count)]
        else:
            tasks = [self._chooser.choose() for _ in range(self._config.rollout.groups_per_step)]
        if settings.kind != "fixed" or settings.counts is not None:
            # Groups are dealt to generators, and cut into minibatches, in this order: no level may always come first.
            Random(sampling_seed(self._config.seed, "task order", number)).shuffle(tasks)
        return tasks

    def another(self, task: Task) -> Task:
        """A task to play in the place of one that taught nothing: of its level where counts are stated, else the next choice."""
        return self._chooser.choose() if self._config.curriculum.counts is None else self._draws.draw(task.level)

    def observe(self, groups: Sequence[Group]) -> dict[str, float]:
        """Learn from the groups of a step; returns metrics."""
        return self._chooser.observe(groups)

    def state(self) -> dict[str, Any]:
        """Where the stream is, in plain JSON types; its size does not grow with the run."""
        return {
            "kind": self._config.curriculum.kind,
            "steps": self._steps,
            "drawn": self._draws.state(),
            "chooser": self._chooser.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on as the stream did whose state this is. Raises `InputError` for the state of another kind of curriculum."""
        if state["kind"] != self._config.curriculum.kind:
            raise InputError(
                f"the state is of curriculum.kind={state['kind']}, but the config says {self._config.curriculum.kind}; "
                "resume a run with the curriculum it began with"
            )
        self._steps = state["steps"]
        self._draws.restore(state["drawn"])
        self._chooser.restore(state["chooser"])


def _chooser(config: RunConfig, draws: Draws) -> Chooser:
    """The chooser of the config's kind."""
    spec, settings = config.env.spec, config.curriculum
    known = spec.levels(config.env_params) if spec.levels is not None else (WHOLE,)
    levels = known if settings.levels is None else settings.levels
    match settings.kind:
        case "fixed":
            return Fixed(draws)
        case "threshold":
            return Threshold(settings, levels, draws)
        case "band":
            return Band(settings, levels, draws, config.seed)
