"""Play one episode and keep everything that passed; the first broken rule of the contract ends it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import BaseModel

from envs.answers import messages_problem, step_problem, summary_problem
from envs.contract import End, EnvSpec, Message, Step, Task


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken rule of the contract: `rule` is its name, `message` says what was seen, what was expected, and where."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """Everything that passed between one environment and its player; equal transcripts mean equal behaviour."""

    messages: tuple[Message, ...]
    actions: tuple[str, ...]
    steps: tuple[Step, ...]
    summary: Mapping[str, float]

    @property
    def solved(self) -> bool:
        """True if the episode ended in success."""
        return bool(self.steps) and self.steps[-1].end is End.SOLVED


class Broken(Exception):  # noqa: N818 - a finding, not an error
    """The first violation of an episode."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(rule, message)
        self.violation = Violation(rule=rule, message=message)


@contextmanager
def exceptions_are(rule: str, where: str) -> Iterator[None]:
    """What foreign code raises inside the block is a finding under `rule`."""
    try:
        yield
    except Broken:
        raise
    except Exception as error:
        raise Broken(rule, f"{where} raised {type(error).__name__}: {error}") from error


def play(spec: EnvSpec, params: BaseModel, task: Task, act: Callable[[str | None], str]) -> Transcript:
    """Play one episode; `act` is given the last observation (None at first) and writes the next action.

    Raises `Broken` if the environment breaks the contract in it.
    """
    *_, transcript = episode(spec, params, task, act)
    return transcript


def episode(spec: EnvSpec, params: BaseModel, task: Task, act: Callable[[str | None], str]) -> Iterator[Transcript]:
    """`play`, one turn a `next`, so that two episodes can be mixed. Yields the transcript so far."""
    where = f"task {task.id}"
    limit = spec.max_turns(params)
    with exceptions_are("raises", f"{where}: make or start"):
        env = spec.make(task)
        messages = env.start()
    require("messages", messages_problem(messages), where)
    actions: list[str] = []
    steps: list[Step] = []
    while not steps or steps[-1].end is None:
        if len(steps) == limit:
            raise Broken("ends", f"{where}: no end after max_turns = {limit} steps; k allowed actions are exactly k calls of step")
        with exceptions_are("players", f"{where}: the player"):
            action = act(steps[-1].observation if steps else None)
        with exceptions_are("raises", f"{where}: step({action!r:.60})"):
            step = env.step(action)
        require("step", step_problem(step), f"{where}: after {action!r:.60}")
        actions.append(action)
        steps.append(step)
        with exceptions_are("raises", f"{where}: summary"):
            summary = dict(env.summary())
        require("summary", summary_problem(summary), where)
        if set(summary) != set(spec.metrics):
            raise Broken("summary", f"{where}: summary has {sorted(summary)}, spec.metrics has {sorted(spec.metrics)}; expected the same")
        yield Transcript(messages=tuple(messages), actions=tuple(actions), steps=tuple(steps), summary=summary)
    total = sum(step.reward for step in steps)
    if steps[-1].end is End.SOLVED and abs(total - 1) > 1e-9:
        raise Broken("reward", f"{where}: a solved episode scored {total}; a success scores exactly 1.0")
    if steps[-1].end is not End.SOLVED and total >= 1 - 1e-9:
        raise Broken("reward", f"{where}: a {steps[-1].end} episode scored {total}; no failure may reach the 1.0 of a success")


def require(rule: str, problem: str | None, where: str) -> None:
    """Raise `Broken` if there is a problem."""
    if problem:
        raise Broken(rule, f"{where}: {problem}")


def replay(transcript: Transcript) -> Callable[[str | None], str]:
    """A player that repeats the actions of `transcript`, and then writes nothing."""
    actions = iter(transcript.actions)
    return lambda _: next(actions, "")
