"""The environment's training streams, one for each level, with a count of what was drawn from each."""

from collections.abc import Iterator, Mapping
from itertools import islice

from cluster.config import RunConfig
from envs.contract import Task
from rollout.play import sampling_seed

WHOLE = ""
"""In the place of a level: the environment's own stream, with the levels mixed as its params say."""


class Draws:
    """Tasks of a level, or of `WHOLE`, in the order of that level's own seeded stream, whatever is drawn from other levels."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._streams: dict[str, Iterator[Task]] = {}
        self._drawn: dict[str, int] = {}

    def draw(self, level: str) -> Task:
        """The next task of the level."""
        if level not in self._streams:
            self._streams[level] = self._open(level)
        self._drawn[level] = self._drawn.get(level, 0) + 1
        return next(self._streams[level])

    def state(self) -> dict[str, int]:
        """How many tasks of each level were drawn."""
        return dict(self._drawn)

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on behind the tasks that the counts say; they are drawn again and thrown away, about a millisecond each."""
        self._drawn = dict(state)
        self._streams = {level: islice(self._open(level), count, None) for level, count in state.items()}

    def _open(self, level: str) -> Iterator[Task]:
        spec, params, seed = self._config.env.spec, self._config.env_params, self._config.seed
        if level == WHOLE:
            return spec.tasks(params, "train", seed)
        assert spec.at_level is not None, f"{spec.name} has one level, so there is no stream of {level}"
        return spec.tasks(spec.at_level(params, level), "train", sampling_seed(seed, "tasks", level))
