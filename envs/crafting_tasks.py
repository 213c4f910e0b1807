"""Tasks of the crafting environment: settings, levels by the exact length of the shortest plan, and splits by content hash."""

import math
from collections.abc import Iterator
from itertools import accumulate
from random import Random
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from envs.contract import Task
from envs.crafting_plan import executions
from envs.crafting_state import State
from envs.crafting_world import Recipe, World, closure, content_key, depth, generate, in_order
from envs.errors import InputError, did_you_mean
from envs.mixture import as_weights, check_weights, trained

LEVELS = {"L1": (1, 2), "L2": (3, 4), "L3": (5, 8), "L4": (9, 16), "L5": (17, 40)}
"""Fewest and most actions of the shortest plan."""
HEAD_START = 6
COUNTS = (1, 2)
TRAIN_DEPTH = 3
"""The longest chain of recipes in training where depth is held out; every level has goals on both sides of it."""
_HELD_OUT_SHARE = 8
_MOST_DRAWS = 20_000


class CraftingParams(BaseModel):
    """Settings of the world, of what is shown and of how it is spoken about."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    levels: dict[str, float] = Field(
        dict.fromkeys(LEVELS, 1.0),
        description="Weight of each level in training; one with weight 0 is only evaluated. A single level may be written as its name.",
    )
    skin: Literal["plain", "opaque"] = Field("plain", description="Names such as oak plank, or m2_i5, which nothing can be guessed from.")
    grammar: Literal["line", "json"] = Field("line", description="Actions as a line such as craft oak plank, or as a JSON tool call.")
    recipes: Literal["shown", "asked"] = Field("shown", description="Recipes in the prompt, or told one at a time by info (get_info).")
    ready: bool = Field(
        False, description="Say after every action what can be done now, each with how much of it is in stock; for tiny policies."
    )
    distractors: int = Field(2, ge=0, le=20, description="Recipes beside those that the goal depends on.")
    slack: float | None = Field(
        None, ge=1, le=3, description="Sources hold this many times what the shortest plan takes, so mistakes are final; none: no end."
    )
    shaping: float = Field(
        0.0, ge=0, le=0.5, description="Reward of a failure in proportion to the part of the shortest plan it got done; success pays 1."
    )
    worlds: int = Field(10_000_000, ge=1_000, description="Worlds to draw from; few worlds can be remembered, many must be read.")
    held_out: Literal["worlds", "goals", "depth"] = Field(
        "worlds", description="What is new in eval: worlds; goals, in worlds of training; or worlds and chains of 4 recipes or more."
    )
    eval_per_level: int = Field(40, ge=1, le=10_000, description="Evaluation tasks of each level.")

    @field_validator("levels", mode="before")
    @classmethod
    def _one_level(cls, value: Any) -> Any:
        return as_weights(value)

    @field_validator("levels")
    @classmethod
    def _known_levels(cls, value: dict[str, float]) -> dict[str, float]:
        return check_weights(value, list(LEVELS), noun="level", field="levels")

    @model_validator(mode="after")
    def _nothing_given_away(self) -> Self:
        if self.ready and self.recipes == "asked":
            raise ValueError("ready=true tells what recipes=asked hides; set ready=false or recipes=shown")
        return self


def tasks(params: CraftingParams, split: str, seed: int) -> Iterator[Task]:
    """`train`: an endless seeded stream. `eval`: `eval_per_level` held-out tasks of every level, whatever the seed, levels in turn."""
    if split == "train":
        return _train(params, seed)
    if split == "eval":
        return _eval(params)
    raise InputError(f"crafting has no split {split!r}: {did_you_mean(split, ['train', 'eval'])}")


def max_turns(params: CraftingParams) -> int:
    """The most turns of a task; a plan of n actions has at most n recipes to ask for."""
    longest = max(LEVELS[level][1] for level in params.levels)
    return budget(longest * (2 if params.recipes == "asked" else 1))


def levels(params: CraftingParams) -> tuple[str, ...]:
    """The levels that are trained on, easiest first."""
    return trained(params.levels)


def at_level(params: CraftingParams, level: str) -> CraftingParams:
    """The same settings, trained on one level alone."""
    return params.model_copy(update={"levels": {level: 1.0}})


def budget(optimal: int) -> int:
    """Turns of a task whose shortest plan has `optimal` actions."""
    return 2 * optimal + 4


def _train(params: CraftingParams, seed: int) -> Iterator[Task]:
    random = Random(seed)
    levels = list(params.levels)
    cumulative = list(accumulate(params.levels.values()))
    while True:
        (level,) = random.choices(levels, cum_weights=cumulative)
        yield draw(params, "train", level, random)


def _eval(params: CraftingParams) -> Iterator[Task]:
    randoms = {level: Random(f"eval {level}") for level in params.levels}
    seen: set[str] = set()
    for _ in range(params.eval_per_level):
        for level, random in randoms.items():
            task = next((one for _ in range(_MOST_DRAWS) if (one := draw(params, "eval", level, random)).id not in seen), None)
            if task is None:
                raise InputError(
                    f"{params.worlds} worlds have no {params.eval_per_level} held-out {level} tasks; raise worlds or lower eval_per_level"
                )
            seen.add(task.id)
            yield task


def draw(params: CraftingParams, split: str, level: str, random: Random) -> Task:
    """A task of the level and the split: a world of that side, a goal of that side, a start some steps into its shortest plan."""
    held_out = split == "eval"
    new_world = held_out and params.held_out != "goals"
    for _ in range(_MOST_DRAWS):
        length = random.randint(*LEVELS[level])
        world = generate(random.randrange(params.worlds))
        if _is_held_out(world.key()) is not new_world:
            continue
        goals = _goals(params, world, length, deeper=new_world)
        random.shuffle(goals)
        for goal, count in goals:
            key = content_key(closure(world.recipes, goal), goal)
            if _is_held_out(key) is held_out:
                data = _data(params, world, goal, count, length, random)
                start = content_key((), data["recipes"], count, data["stock"])
                identity = f"crafting/{level}/{world.key()}/{key}/{start}"
                return Task(id=identity, env="crafting", split=split, level=level, seed=0, data=data)
    raise InputError(
        f"no {level} task for {split} was found in {_MOST_DRAWS} draws of {params.worlds} worlds with held_out={params.held_out}; "
        "raise worlds"
    )


def _goals(params: CraftingParams, world: World, length: int, *, deeper: bool) -> list[tuple[str, int]]:
    """(item, count) of the crafted items whose shortest plan from nothing has `length` actions or a few more."""
    goals = []
    for recipe in world.recipes:
        if not recipe.inputs or (params.held_out == "depth" and (depth(world.recipes, recipe.item) > TRAIN_DEPTH) is not deeper):
            continue
        for count in COUNTS[: 1 if recipe.item in world.apparatus else None]:
            if length <= sum(executions(world.recipes, recipe.item, count, {}).values()) <= length + HEAD_START:
                goals.append((recipe.item, count))
    return goals


def _is_held_out(key: str) -> bool:
    """True if content with this hash is held out of training: one in eight."""
    return int(key, 16) % _HELD_OUT_SHARE == 0


def _data(params: CraftingParams, world: World, goal: str, count: int, length: int, random: Random) -> dict[str, Any]:
    """What a task says: the goal with what it can depend on, distractors, and the stock some steps into a shortest plan."""
    needed = closure(world.recipes, goal)
    state = State(recipes=needed, goal=goal, count=count, stock={})
    while sum((plan := state.plan()).values()) > length:
        recipe = random.choice([recipe for recipe in state.ready() if recipe.item in plan])
        state.execute(recipe.verb, recipe.item)
    assert sum(plan.values()) == length, f"a shortest plan of {sum(plan.values())} actions instead of {length}"
    asked = params.recipes == "asked"
    optimal = length + (len(plan) if asked else 0)
    recipes = _with_distractors(world, needed, goal, params.distractors, random)
    data: dict[str, Any] = {
        "recipes": [recipe.to_json() for recipe in recipes],
        "goal": goal,
        "count": count,
        "stock": dict(state.held()),
        "optimal": optimal,
        "turns": budget(optimal),
        "grammar": params.grammar,
        "asked": asked,
        "ready": params.ready,
        "shaping": params.shaping,
    }
    if params.slack is not None:
        sources = [recipe.item for recipe in recipes if not recipe.inputs]
        # One at least: a source with nothing in it would give away that nobody needs it.
        data["supply"] = {item: max(1, math.ceil(params.slack * plan.get(item, 0))) for item in sources}
    if params.skin == "plain":
        data["names"] = {recipe.item: world.plain[recipe.item] for recipe in recipes}
    return data


def _with_distractors(world: World, needed: tuple[Recipe, ...], goal: str, count: int, random: Random) -> tuple[Recipe, ...]:
    """The needed recipes and up to `count` others that can be executed before the goal is reached, so that they tempt and use up."""
    shown = {recipe.item for recipe in needed}
    for _ in range(count):
        made = shown - {goal}
        others = [recipe for recipe in world.recipes if recipe.item not in shown and made.issuperset(recipe.asks_for())]
        if not others:
            break
        shown.add(random.choice(others).item)
    return tuple(recipe for recipe in world.recipes if recipe.item in shown)


def read(task: Task) -> tuple[State, dict[str, str]]:
    """The state that a task begins in, and the name of every item. Raises `InputError` for data of no task of this environment."""
    data = task.data
    try:
        recipes = in_order(Recipe.read(recipe) for recipe in data["recipes"])
        names = dict(data.get("names") or {recipe.item: recipe.item for recipe in recipes})
        state = State(recipes=recipes, goal=data["goal"], count=data["count"], stock=data["stock"], supply=data.get("supply"))
        if not names.keys() == state.by_item.keys() >= {state.goal, *data["stock"], *state.supply} or len({*names.values()}) < len(names):
            raise ValueError("an item has no recipe or no name of its own")
        if state.reached or data["turns"] < 1:
            raise ValueError("there is nothing to do, or no turn to do it in")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"task {task.id}: its data cannot be read ({type(error).__name__}: {error}); take tasks from the environment's own stream"
        ) from error
    return state, names
