"""Environments that the controller itself plays with scripted players: for demonstrations, the probe and the checks before a start."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from cluster.config import RunConfig
from envs.contract import Env, EnvFault, EnvSpec, Message, Step, Task
from envs.errors import InputError
from envs.isolated import EnvProcess


@contextmanager
def playable(config: RunConfig) -> Iterator[EnvSpec]:
    """The spec of the config's environment, whose `make` is safe to call here: one that is not built in runs where it can be killed.

    Raises `InputError` if such an environment fails: a scripted player meets the same fault in every run.
    """
    spec = config.env.spec
    if config.env.built_in:
        yield spec
        return
    numbers = itertools.count()
    with EnvProcess(deadline_s=config.cluster.env_deadline_s) as process:
        try:
            yield replace(spec, make=lambda task: _Hosted(process, next(numbers), task))
        except EnvFault as fault:
            raise InputError(
                f"environment {config.env.name} failed while a scripted player played it: {fault}. Expected an episode without a fault; "
                "envs.check.check_env says in words what is wrong with an environment"
            ) from None


class _Hosted(Env):
    """An environment on the other side of an `EnvProcess`."""

    def __init__(self, process: EnvProcess, number: int, task: Task) -> None:
        self._process, self._number, self._task = process, number, task

    def start(self) -> tuple[Message, ...]:
        with _naming(self._task):
            return self._process.start(self._number, self._task)

    def step(self, text: str) -> Step:
        with _naming(self._task):
            return self._process.step(self._number, text)

    def summary(self) -> Mapping[str, float]:
        with _naming(self._task):
            return self._process.close(self._number)


@contextmanager
def _naming(task: Task) -> Iterator[None]:
    try:
        yield
    except EnvFault as fault:
        raise EnvFault(fault.kind, f"{fault.message} (task {task.id})") from None
