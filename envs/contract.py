"""The environment contract: what an environment is given, what it returns, and how an episode ends.

An environment is single-use. It is built from one `Task`, `start()` returns the first messages, and every `step(text)`
takes exactly one action. There is no reset and no state shared between instances. Text in, text out: an environment
never sees token ids. `envs.check.check_env` tests this contract on anybody's environment.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from pydantic import BaseModel

from envs.metrics import Reduction


class End(StrEnum):
    """How an episode ended.

    `OUT_OF_TOKENS` is the only truncation: the episode was cut by a limit of the model, not by a rule of the world, and it
    keeps the reward that the environment had given so far. `ENV_ERROR` is never scored: it is not a reward of 0.
    """

    SOLVED = "solved"
    FAILED = "failed"
    OUT_OF_TURNS = "out_of_turns"
    INVALID_ACTIONS = "invalid_actions"
    OUT_OF_TOKENS = "out_of_tokens"
    ENV_ERROR = "env_error"

    @property
    def truncated(self) -> bool:
        """True if a token limit cut the episode, so that its outcome says nothing about the world's rules."""
        return self is End.OUT_OF_TOKENS

    @property
    def scored(self) -> bool:
        """True if the episode has a reward. An unscored episode can never reach the loss."""
        return self is not End.ENV_ERROR


@dataclass(frozen=True, kw_only=True)
class Message:
    """One chat message: `role` is one of system, user, assistant, tool."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """One instance of an environment: pure data, JSON round trip.

    Example: `Task(id="number_search/16-4/11", env="number_search", split="train", level="16-4", seed=0,
    data={"numbers": 16, "guesses": 4, "secret": 11})`.
    """

    id: str
    env: str
    split: str
    level: str
    seed: int
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The task as plain JSON types; `Task(**task.to_json())` is equal to the task."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The answer to one action: the observation, the reward of this turn, and the end of the episode if it ended."""

    observation: str
    reward: float = 0.0
    end: End | None = None
    valid: bool = True
    """False if the action could not be parsed or was illegal: it cost a turn and changed nothing."""


class EnvFault(Exception):  # noqa: N818 - a fault of the world, recorded as data, not an error of the caller
    """An environment failed: it is never a reward of 0. `kind` is one of raised, timed_out, died, garbage, lost."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class Env(Protocol):
    """A single-use environment. `step` may be called until it returns a `Step` with an `end`, and not after."""

    def start(self) -> tuple[Message, ...]:
        """The first messages (system and user). Called exactly once, before any step."""
        ...

    def step(self, text: str) -> Step:
        """Take exactly one action, given as the text that the policy wrote, end-of-turn token removed."""
        ...

    def summary(self) -> Mapping[str, float]:
        """Numbers that describe the episode so far, beside its reward; the names are those of `EnvSpec.metrics`."""
        ...


class Player(Protocol):
    """A scripted player of one episode: given the last observation (None at first), it writes the next action."""

    def act(self, observation: str | None) -> str:
        """The text of the next action."""
        ...


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """Everything that the system knows of one environment; `envs.catalog.ENVS` maps names to specs."""

    name: str
    summary: str
    params: type[BaseModel]
    """A frozen pydantic model of the environment's settings, every field with a default and a description."""
    tasks: Callable[[Any, str, int], Iterator[Task]]
    """`tasks(params, split, seed)`: an endless seeded stream for `train`; a finite list of held-out or exhaustive tasks for `eval`."""
    make: Callable[[Task], Env]
    """Build the environment of one task, from the task alone."""
    players: Mapping[str, Callable[[Task, int], Player]]
    """Scripted players by name: `players[name](task, seed)`. `oracle`, `plausible` and `random` exist for every environment."""
    metrics: Mapping[str, Reduction]
    """The names that `Env.summary` returns, each with its reduction."""
    max_turns: Callable[[Any], int]
    """The most turns that an episode with these params can take."""
    best_success: Callable[[Any], float]
    """The highest expected success that any policy can reach (1.0 where nothing better is known)."""
    hint: Callable[[Task], str] | None = None
    """A sentence that makes a task easier without solving it, for prompts of tasks that no sibling solves; None if there is none."""
    view: Callable[[Any], str] | None = None
    """The state of an environment of `make`, as a person who plays it reads it before each turn; None where the replies say it all."""
    levels: Callable[[Any], tuple[str, ...]] | None = None
    """The levels that training with these params draws from, easiest first; None where all tasks have one level."""
    at_level: Callable[[Any, str], Any] | None = None
    """`at_level(params, level)`: the params with which training draws tasks of this level alone; there if and only if `levels` is."""
