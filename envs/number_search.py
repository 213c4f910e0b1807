"""Number search: find a hidden integer of 1..N in k guesses, from the replies `higher` and `lower`.

The whole game is in one page, and every number about it is known exactly (`envs.number_search_exact`), so that a measured
success above `min(N, 2^k - 1) / N` means a leak or an off-by-one, never luck of a better policy.
"""

import math
import re
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from envs.contract import End, EnvSpec, Message, Step, Task
from envs.errors import InputError, did_you_mean
from envs.metrics import Reduction
from envs.number_search_players import PLAYERS

MAX_UNPARSABLE = 3
# At most 9 digits: int() refuses texts of thousands of digits, and nothing that long is ever in range.
_GUESS = re.compile(r"guess\((0|-?[1-9][0-9]{0,8})\)")
_HIGHER = Step(observation="higher")
_LOWER = Step(observation="lower")
_CORRECT = Step(observation="correct", reward=1.0, end=End.SOLVED)


class NumberSearchParams(BaseModel):
    """Settings of the game; (32, 5) and (64, 6) are harder settings with an optimum of .969 and .984."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    numbers: int = Field(16, ge=2, le=10_000, description="N: the hidden number is one of 1..N.")
    guesses: int = Field(4, ge=1, le=1_000, description="k: turns an episode has; a refused action costs one too.")
    shaping: float = Field(
        0.0, ge=0, lt=1, description="Reward of a failed search that left one number, in proportion to the bits it learned; success pays 1."
    )


def parse_guess(text: str) -> int | str:
    """The integer of `guess(INTEGER)`, or a sentence that says what is wrong with the text.

    Strict and total: exactly one lower-case action in ASCII, without leading zeros and with nothing around it; nothing is
    stripped. The sentence never repeats the text, so that control tokens in it cannot reach the next prompt.

    >>> parse_guess("guess(8)"), parse_guess("guess(8)!")
    (8, 'Text around the guess; write guess(number) and nothing else.')
    """
    whole = _GUESS.fullmatch(text)
    if whole:
        return int(whole[1])
    if not text:
        return "Nothing was written; write guess(number)."
    found = sum(1 for _ in _GUESS.finditer(text))
    if found > 1:
        return f"{found} guesses in one turn; write exactly one."
    if found:
        return "Text around the guess; write guess(number) and nothing else."
    return "No guess was found; write guess(number) and nothing else."


class NumberSearch:
    """One episode. The reply speaks of the secret: `guess(8)` is answered `higher` if the secret is 11."""

    def __init__(self, task: Task) -> None:
        self._numbers, self._guesses, self._secret = _read(task)
        self._shaping = float(task.data.get("shaping", 0.0))
        self._low, self._high = 1, self._numbers
        self._turns = self._unparsable = self._invalid = 0
        self._valid: list[int] = []
        self._consistent = 0
        self._distance = 0.0
        self._ended = False

    def start(self) -> tuple[Message, ...]:
        """One user message: the range, how to act, the replies, the number of guesses. It does not depend on the secret."""
        rules = (
            f"Find the number in 1-{self._numbers}. Write one guess a turn, such as guess({min(8, self._numbers)}), and nothing else. "
            f"Replies: higher, lower, correct. Guesses: {self._guesses}."
        )
        return (Message(role="user", content=rules),)

    def step(self, text: str) -> Step:
        """Answer one guess; the k-th call ends the episode, and a correct k-th guess is a success."""
        assert not self._ended, "step was called after the episode had ended"
        self._turns += 1
        guess = parse_guess(text)
        if isinstance(guess, str):
            self._unparsable += 1
            return self._refuse(guess)
        self._unparsable = 0
        if not 1 <= guess <= self._numbers:
            return self._refuse(f"Out of range; guess a number in 1-{self._numbers}.")
        self._record(guess)
        if guess == self._secret:
            self._ended = True
            return _CORRECT
        if self._turns == self._guesses:
            self._ended = True
            return Step(observation="timeout", reward=self._learned(), end=End.OUT_OF_TURNS)
        return _HIGHER if guess < self._secret else _LOWER

    def summary(self) -> Mapping[str, float]:
        """How the guesses were made. Shares, distances and `first_guess` are 0 if no guess was valid (see `invalid`)."""
        made = len(self._valid)
        return {
            "consistent_share": self._consistent / made if made else 0.0,
            "repeats": float(made - len(set(self._valid))),
            "middle_distance": self._distance / made if made else 0.0,
            "invalid": float(self._invalid),
            "first_guess": float(self._valid[0]) if made else 0.0,
        }

    def _refuse(self, why: str) -> Step:
        self._invalid += 1
        end = None
        if self._unparsable == MAX_UNPARSABLE:
            end = End.INVALID_ACTIONS
        elif self._turns == self._guesses:
            end = End.OUT_OF_TURNS
        self._ended = end is not None
        return Step(observation=why, end=end, valid=False)

    def _learned(self) -> float:
        """`shaping * log(N / numbers left) / log(N)`: below 1, the reward of a success, so that a search is worth less than a find."""
        return self._shaping * (1 - math.log(self._high - self._low + 1) / math.log(self._numbers))

    def _record(self, guess: int) -> None:
        """Judge the guess by the numbers that fitted all replies before it, then shrink them by its own reply."""
        self._valid.append(guess)
        self._consistent += self._low <= guess <= self._high
        self._distance += abs(guess - (self._low + self._high) / 2)
        if guess < self._secret:
            self._low = max(self._low, guess + 1)
        elif guess > self._secret:
            self._high = min(self._high, guess - 1)


def _read(task: Task) -> tuple[int, int, int]:
    values = [task.data.get(key) for key in ("numbers", "guesses", "secret")]
    match values:
        case [int(numbers), int(guesses), int(secret)] if guesses >= 1 and 1 <= secret <= numbers:
            return numbers, guesses, secret
    raise InputError(
        f"task {task.id}: data is {dict(task.data)!r}; expected integers numbers, guesses >= 1 and secret in 1..numbers; "
        "take tasks from the environment's own stream"
    )


def _task(params: NumberSearchParams, split: str, secret: int) -> Task:
    level = f"{params.numbers}-{params.guesses}"
    data: dict[str, Any] = {"numbers": params.numbers, "guesses": params.guesses, "secret": secret}
    if params.shaping:
        data["shaping"] = params.shaping
    return Task(id=f"number_search/{level}/{secret}", env="number_search", split=split, level=level, seed=0, data=data)


def _shuffled_passes(params: NumberSearchParams, seed: int) -> Iterator[Task]:
    secrets = list(range(1, params.numbers + 1))
    random = Random(seed)
    while True:
        random.shuffle(secrets)
        for secret in secrets:
            yield _task(params, "train", secret)


def tasks(params: NumberSearchParams, split: str, seed: int) -> Iterator[Task]:
    """`train`: endless, every secret once a pass, each pass in a new order. `eval`: every secret once, in order."""
    if split == "train":
        return _shuffled_passes(params, seed)
    if split == "eval":
        return (_task(params, "eval", secret) for secret in range(1, params.numbers + 1))
    raise InputError(f"number_search has no split {split!r}: {did_you_mean(split, ['train', 'eval'])}")


def _max_turns(params: NumberSearchParams) -> int:
    return params.guesses


def _best_success(params: NumberSearchParams) -> float:
    """k guesses tell at most 2^k - 1 secrets apart, one for each node of a binary tree of depth k."""
    most: int = 2**params.guesses - 1
    return min(params.numbers, most) / params.numbers


def hint(task: Task) -> str:
    """The half of 1..N that the secret lies in: a bit, which is what one perfect guess tells.

    >>> hint(_task(NumberSearchParams(), "train", 11))
    'Hint: the number is in 9-16.'
    """
    numbers, _, secret = _read(task)
    half = numbers // 2
    low, high = (1, half) if secret <= half else (half + 1, numbers)
    return f"Hint: the number is in {low}-{high}."


SPEC = EnvSpec(
    name="number_search",
    summary="Find a hidden integer of 1..N in k guesses, told higher or lower after each.",
    params=NumberSearchParams,
    tasks=tasks,
    make=NumberSearch,
    players=PLAYERS,
    metrics={
        "consistent_share": Reduction.MEAN,
        "repeats": Reduction.MEAN,
        "middle_distance": Reduction.MEAN,
        "invalid": Reduction.MEAN,
        "first_guess": Reduction.MEAN,
    },
    max_turns=_max_turns,
    best_success=_best_success,
    hint=hint,
)
