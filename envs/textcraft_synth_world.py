"""The world and the tasks of the package `platoon-textcraft`: its recipes, its own game code, its data files.

The package is optional and imported when first needed. Its metadata asks for Python 3.12 and for a server framework; the parts used
here run on Python 3.11 and need neither. Loading the world takes about 0.1 s and the tasks about 1 s, once a process.
"""

import importlib
import importlib.metadata
import importlib.resources
import json
from dataclasses import dataclass
from functools import cache
from random import Random
from threading import Lock
from typing import Any

from envs.crafting_world import Recipe, closure
from envs.errors import InputError

VERSION = "0.3.0"
LEVELS = ("easy", "medium", "hard", "extreme")
FILES = {"train": "textcraft_synth_train.jsonl", "eval": "textcraft_synth_val.jsonl"}
"""The package's file of each split; its split `val` is `eval` here."""
_LOCK = Lock()


@dataclass(frozen=True, kw_only=True)
class World:
    """The one world of all tasks. `recipes` come after everything they ask for; the base items are sources without ingredients."""

    game: Any
    """The package's class of the game: four tools over an inventory."""
    book: Any
    """The package's recipes, as its game looks them up."""
    recipes: tuple[Recipe, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One task of the package. Its plan makes each item in one call, `calls` in all, and no plan has fewer."""

    id: str
    level: str
    target: dict[str, int]
    inventory: dict[str, int]
    calls: int
    stored_steps: int


@cache
def world() -> World:
    """The world, loaded once a process. Raises `InputError` if the package is missing or is another version."""
    _require_package()
    generator: Any = importlib.import_module("platoon_textcraft.synth_recipe_generator")
    # The package seeds and draws from the global generator; from one of its own it draws the same world and leaves the global one alone.
    with _LOCK:
        generator.random = Random()
        book = importlib.import_module("platoon_textcraft.synth_recipe_loader").SynthRecipeLoader()
    recipes = [_recipe(book, item) for item in sorted(book.all_items, key=lambda item: (book.get_crafting_depth(item), item))]
    return World(game=importlib.import_module("platoon_textcraft.harbor.game").Game, book=book, recipes=tuple(recipes))


def _recipe(book: Any, item: str) -> Recipe:
    if book.is_base_item(item):
        return Recipe(item=item, verb="gather", makes=1)
    (recipe,) = book.get_recipes_for_item(item)
    return Recipe(item=item, verb="craft", makes=recipe.result_count, inputs=tuple(recipe.ingredients.items()))


@cache
def needed(goal: str) -> tuple[Recipe, ...]:
    """The recipes that an item of the world can depend on, its own and the base items included."""
    return closure(world().recipes, goal)


@cache
def rows(split: str) -> tuple[Row, ...]:
    """The tasks of a split of `FILES` in the package's order. Raises `InputError` as `world` does."""
    _require_package()
    lines = importlib.resources.files("platoon_textcraft").joinpath("data", FILES[split]).read_text(encoding="utf-8").splitlines()
    return tuple(_row(json.loads(line)) for line in lines)


def _row(data: dict[str, Any]) -> Row:
    misc = data["misc"]
    return Row(
        id=data["id"],
        level=misc["difficulty"],
        target=misc["target_items"],
        inventory=misc["initial_inventory"],
        calls=misc["num_craft_steps"],
        stored_steps=data["max_steps"],
    )


def _require_package() -> None:
    get_it = f"run make textcraft, or: pip install --no-deps --ignore-requires-python platoon-textcraft=={VERSION}"
    try:
        found = importlib.metadata.version("platoon-textcraft")
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(f"textcraft_synth needs the package platoon-textcraft, which has its world and tasks; {get_it}") from error
    if found != VERSION:
        raise InputError(f"platoon-textcraft {found} is installed, and its tasks may be others than those of {VERSION}; {get_it}")
