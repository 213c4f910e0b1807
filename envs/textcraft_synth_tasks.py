"""Tasks of TextCraft-Synth: settings, the mixture of difficulties, turns."""

from collections.abc import Iterator
from itertools import accumulate, zip_longest
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from envs.contract import Task
from envs.errors import InputError, did_you_mean
from envs.mixture import as_weights, check_weights, trained
from envs.textcraft_synth_world import FILES, LEVELS, Row, rows, world


class TextcraftSynthParams(BaseModel):
    """Settings: what is trained on, what is evaluated on, and how many turns an episode has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    difficulties: dict[str, float] = Field(
        dict.fromkeys(LEVELS, 1.0),
        description="Weight of easy, medium, hard, extreme in training; one with weight 0 is only evaluated. "
        "A single one may be written as its name.",
    )
    steps: Literal["plan", "stored"] = Field(
        "plan",
        description="Turns: twice the calls of the shortest plan and 4; or the 75 that the package stores, "
        "which one call a turn makes too few for most hard tasks.",
    )
    eval_per_level: int = Field(40, ge=1, description="Evaluation tasks of each difficulty, the first of the package's; 213 takes all 632.")

    @field_validator("difficulties", mode="before")
    @classmethod
    def _one_difficulty(cls, value: Any) -> Any:
        return as_weights(value)

    @field_validator("difficulties")
    @classmethod
    def _known_difficulties(cls, value: dict[str, float]) -> dict[str, float]:
        return check_weights(value, LEVELS, noun="difficulty", field="difficulties")


def tasks(params: TextcraftSynthParams, split: str, seed: int) -> Iterator[Task]:
    """`train`: an endless seeded stream, every task of a difficulty once a pass. `eval`: the held-out tasks, difficulties in turn.

    Raises `InputError` for another split, and without the package.
    """
    if split not in FILES:
        raise InputError(f"textcraft_synth has no split {split!r}: {did_you_mean(split, list(FILES))}")
    return _train(params, seed) if split == "train" else (_task(params, "eval", row) for row in _eval_rows(params))


def max_turns(params: TextcraftSynthParams) -> int:
    """The most turns of a task of the chosen difficulties, in training or evaluation."""
    return max(turns(params, row) for split in FILES for row in rows(split) if row.level in params.difficulties)


def best_success(params: TextcraftSynthParams) -> float:
    """The share of evaluation tasks whose shortest plan and `finish` fit their turns."""
    fitting = [row.calls + 1 <= turns(params, row) for row in _eval_rows(params)]
    return sum(fitting) / len(fitting)


def levels(params: TextcraftSynthParams) -> tuple[str, ...]:
    """The difficulties that are trained on, easiest first."""
    return trained(params.difficulties)


def at_level(params: TextcraftSynthParams, level: str) -> TextcraftSynthParams:
    """The same settings, trained on one difficulty alone."""
    return params.model_copy(update={"difficulties": {level: 1.0}})


def turns(params: TextcraftSynthParams, row: Row) -> int:
    """The turns that an episode of a task has."""
    return row.stored_steps if params.steps == "stored" else 2 * row.calls + 4


def start(task: Task) -> tuple[str, int, dict[str, int], int]:
    """The goal, how many to hold in the end, the inventory and the turns of a task. Raises `InputError` for data of no such task."""
    match [task.data.get(key) for key in ("target", "inventory", "turns")]:
        case [dict(target), dict(inventory), int(turns)] if _are_counts(target) and _are_counts(inventory) and turns > 0:
            if len(target) == 1 and world().book.can_craft(*target):
                ((goal, count),) = target.items()
                return goal, count + inventory.get(goal, 0), dict(inventory), turns
    raise InputError(
        f"task {task.id}: data is {dict(task.data)!r:.300}; expected target, one item of the world with its count, inventory, "
        "and turns > 0; take tasks from the environment's own stream"
    )


def _are_counts(counts: dict[Any, Any]) -> bool:
    return all(isinstance(item, str) and isinstance(count, int) and count > 0 for item, count in counts.items())


def _train(params: TextcraftSynthParams, seed: int) -> Iterator[Task]:
    random = Random(seed)
    levels = list(params.difficulties)
    cumulative = list(accumulate(params.difficulties.values()))
    streams = {level: _passes([row for row in rows("train") if row.level == level], random) for level in levels}
    while True:
        (level,) = random.choices(levels, cum_weights=cumulative)
        yield _task(params, "train", next(streams[level]))


def _passes(chosen: list[Row], random: Random) -> Iterator[Row]:
    while True:
        yield from random.sample(chosen, len(chosen))


def _eval_rows(params: TextcraftSynthParams) -> list[Row]:
    by_level = [[row for row in rows("eval") if row.level == level][: params.eval_per_level] for level in params.difficulties]
    return [row for in_turn in zip_longest(*by_level) for row in in_turn if row is not None]


def _task(params: TextcraftSynthParams, split: str, row: Row) -> Task:
    data = {"target": dict(row.target), "inventory": dict(row.inventory), "turns": turns(params, row)}
    return Task(id=row.id, env="textcraft_synth", split=split, level=row.level, seed=0, data=data)
