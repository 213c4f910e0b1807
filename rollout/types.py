"""Types between the stages: frozen, keyword-only, checked at construction.

Shape suffixes: `_T` tokens of one trajectory. Tokens are stored once, append-only; `action_mask` is 1 on every token that
the policy sampled (the end-of-turn token included) and 0 on prompt, observations and template glue. `None` (never scored)
is not `0.0` (scored, no signal).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from envs.contract import End, Task
from envs.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one turn is sampled. `temperature` 0 is greedy; `seed` makes the turn reproducible on its own."""

    temperature: float = 1.0
    max_tokens: int = 16
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a policy sampled in one turn: token ids with their behaviour log-probs, and the policy versions that sampled them.

    Example: `Completion(token_ids=(17, 2), logp_old=(-0.7, -0.01), first_version=3, last_version=3, stopped=True)`:
    two tokens, the second of them the end of the turn, both from version 3. `stopped` is False if the budget ran out first.
    `cached_tokens` of the prompt were found in the engine's prefix cache.
    """

    token_ids: tuple[int, ...]
    logp_old: tuple[float, ...]
    first_version: int
    last_version: int
    stopped: bool
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logp_old):
            raise InputError(
                f"a completion has {len(self.token_ids)} tokens but {len(self.logp_old)} log-probs; every sampled token needs "
                "its log-prob, a missing one would count as probability one"
            )


class Departure(StrEnum):
    """In what an episode's sampler differed from the policy as it is trained, so that its log-probs are of another policy."""

    TEMPERATURE = "temperature"
    """It sampled at a temperature that is not the run's."""
    HINT = "hint"
    """It read a hint in the prompt that is not among the tokens that are trained."""
    PLAYER = "player"
    """It was a scripted player, which is certain of what it writes: log-prob 0."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One action of the policy and the environment's answer. `start` is the action's first position in the trajectory."""

    start: int
    token_ids: tuple[int, ...]
    logp_old: tuple[float, ...]
    text: str
    observation: str
    reward: float
    valid: bool
    first_version: int
    last_version: int


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One episode, aligned token by token.

    Example (token ids invented): the prompt `5 6 7`, the action `guess(8)` = `40 2`, the reply `8 9`, the action `41 2`:

        token_ids    5 6 7 40 2 8 9 41 2
        action_mask  0 0 0  1 1 0 0  1 1
        logp_old     0 0 0  a b 0 0  c d      (entries outside the mask are 0 and are never read)

    `group` names the group within the run and `member` the sibling within the group; `seed` drives the sampling.
    `departures` is empty if the policy itself sampled, at the run's temperature, behind these very tokens.
    `reward` is the sum of the turns' rewards, and None if and only if the episode was never scored (`End.ENV_ERROR`).
    Raises `InputError` if lengths differ, the mask does not match the turns, nothing was sampled, or a reward is not a
    finite number; the message names task, group and member.
    """

    task: Task
    group: int
    member: int
    seed: int
    token_ids: tuple[int, ...]
    action_mask: tuple[int, ...]
    logp_old: tuple[float, ...]
    turns: tuple[Turn, ...]
    end: End
    error: str | None = None
    summary: Mapping[str, float] = field(default_factory=dict)
    departures: tuple[Departure, ...] = ()

    def __post_init__(self) -> None:
        where = f"task {self.task.id}, group {self.group}, member {self.member}"
        lengths = {len(self.token_ids), len(self.action_mask), len(self.logp_old)}
        if len(lengths) != 1:
            raise InputError(f"{where}: token ids, mask and log-probs have lengths {sorted(lengths)}; expected one length for all")
        if not self.end.scored:
            return
        stop = 1  # the first token has nothing before it to be sampled from
        for number, turn in enumerate(self.turns):
            if isinstance(turn.reward, bool) or not isinstance(turn.reward, int | float):
                raise InputError(f"{where}: the reward of turn {number} is {turn.reward!r}; expected a number (1.0 or 0.0 by default)")
            if not math.isfinite(turn.reward):
                raise InputError(f"{where}: the reward of turn {number} is {turn.reward}; expected a finite number")
            after, stop = stop, turn.start + len(turn.token_ids)
            if turn.start < after or self.token_ids[turn.start : stop] != turn.token_ids or not all(self.action_mask[turn.start : stop]):
                raise InputError(f"{where}: turn {number} is not where it says, at tokens {turn.start}..{stop - 1}")
            if self.logp_old[turn.start : stop] != turn.logp_old:
                raise InputError(f"{where}: the log-probs of turn {number} are not those at tokens {turn.start}..{stop - 1}")
        sampled = sum(len(turn.token_ids) for turn in self.turns)
        if sampled == 0:
            raise InputError(f"{where}: no sampled token; an episode without an action has no gradient")
        if sum(self.action_mask) != sampled:
            raise InputError(f"{where}: the mask has {sum(self.action_mask)} ones but {sampled} tokens were sampled")
        if not all(math.isfinite(logp) and logp <= 1e-6 for turn in self.turns for logp in turn.logp_old):
            raise InputError(f"{where}: a behaviour log-prob is not a finite number <= 0")

    @property
    def reward(self) -> float | None:
        """Sum of the turns' rewards; None if the episode was never scored."""
        return sum(float(turn.reward) for turn in self.turns) if self.end.scored else None

    @property
    def solved(self) -> bool:
        """True if the episode ended in success."""
        return self.end is End.SOLVED

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(self.action_mask)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The siblings of one task: same task, same group number, members 0..G-1, all scored.

    Raises `InputError` if a member is missing, unscored or of another task: dropping one member would bias the group mean,
    so a group is whole or it is not a group.
    """

    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise InputError("a group has no member; expected at least one trajectory")
        first = self.trajectories[0]
        for expected, trajectory in enumerate(self.trajectories):
            where = f"task {first.task.id}, group {first.group}"
            if trajectory.task.id != first.task.id or trajectory.group != first.group:
                raise InputError(f"{where}: member {trajectory.member} belongs to task {trajectory.task.id}, group {trajectory.group}")
            if trajectory.member != expected:
                raise InputError(f"{where}: expected member {expected}, got member {trajectory.member}; a group must be complete")
            if trajectory.reward is None:
                raise InputError(f"{where}: member {expected} was never scored ({trajectory.error}); drop the whole group")

    @property
    def task(self) -> Task:
        """The task that all siblings play."""
        return self.trajectories[0].task

    @property
    def rewards(self) -> tuple[float, ...]:
        """The siblings' rewards, shape (G,)."""
        return tuple(float(trajectory.reward) for trajectory in self.trajectories if trajectory.reward is not None)

    @property
    def dead(self) -> bool:
        """True if all rewards are equal. Compared exactly, never by a standard deviation: rounding would give 0.7 x 8 a signal."""
        return max(self.rewards) == min(self.rewards)
