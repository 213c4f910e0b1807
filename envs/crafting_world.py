"""Worlds of the crafting environment: a technology tree, drawn from a number.

Every item has exactly one recipe, and recipes point to earlier items only, so that a world is a directed acyclic graph. Its items
carry opaque names such as `m2_i5`: 2 is the tier (one more than the highest tier of what the recipe asks for), 5 says nothing.
Stations (a bench, a furnace) and tools (picks) are needed but never used up, and are never an ingredient.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from envs.crafting_names import Namer

INDICES = 8
_MORE_INPUTS = (0, 1, 1, 1, 2)
_AMOUNTS = (1, 1, 1, 2)
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one item is made: `makes` units an execution, from `inputs` (item, amount), while `needs` is held.

    `verb` is gather or mine (no inputs), craft or smelt. Example: `Recipe(item="m2_i5", verb="craft", makes=1,
    inputs=(("m1_i0", 2), ("m0_i3", 1)), needs="m1_i4")`.
    """

    item: str
    verb: str
    makes: int
    inputs: tuple[tuple[str, int], ...] = ()
    needs: str | None = None

    def asks_for(self) -> tuple[str, ...]:
        """The items that must have been made before: ingredients, then the station or tool."""
        return (*(item for item, _ in self.inputs), *((self.needs,) if self.needs else ()))

    def to_json(self) -> list[Any]:
        """Plain JSON; `Recipe.read` reads it back."""
        return [self.item, self.verb, self.makes, [list(pair) for pair in self.inputs], self.needs]

    @classmethod
    def read(cls, data: Any) -> "Recipe":
        """The recipe of `to_json`. Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
        item, verb, makes, inputs, needs = data
        return cls(item=item, verb=verb, makes=int(makes), inputs=tuple((name, int(amount)) for name, amount in inputs), needs=needs)


@dataclass(frozen=True, kw_only=True)
class World:
    """A technology tree: `recipes` come after everything they ask for; `plain` are readable names of the same items."""

    recipes: tuple[Recipe, ...]
    plain: dict[str, str]
    apparatus: frozenset[str]
    """Stations and tools."""

    def key(self) -> str:
        """The hash of what the world is, whatever number it was drawn from."""
        return content_key(self.recipes)


def content_key(recipes: Iterable[Recipe], *rest: Any) -> str:
    """A hash of recipes, in any order, and of other JSON values; the same on every machine and under any hash seed."""
    content = [sorted((recipe.to_json() for recipe in recipes), key=lambda recipe: str(recipe[0])), *rest]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=6).hexdigest()


def tier(item: str) -> int:
    """The tier in an opaque name: 2 for `m2_i5`."""
    return int(item[1 : item.index("_")])


def in_order(recipes: Iterable[Recipe]) -> tuple[Recipe, ...]:
    """The recipes by tier and name, so that each comes after everything it asks for. Raises `ValueError` if one does not."""
    ordered = tuple(sorted(recipes, key=lambda recipe: (tier(recipe.item), recipe.item)))
    known: set[str] = set()
    for recipe in ordered:
        if not known.issuperset(recipe.asks_for()):
            raise ValueError(f"{recipe.item} asks for an item that no lower tier has")
        known.add(recipe.item)
    return ordered


def closure(recipes: Iterable[Recipe], goal: str) -> tuple[Recipe, ...]:
    """The recipes that the goal can depend on, its own included, in the order given."""
    by_item = {recipe.item: recipe for recipe in recipes}
    wanted, found = [goal], {goal}
    while wanted:
        for item in by_item[wanted.pop()].asks_for():
            if item not in found:
                found.add(item)
                wanted.append(item)
    return tuple(recipe for recipe in by_item.values() if recipe.item in found)


def depth(recipes: Iterable[Recipe], goal: str) -> int:
    """Recipes in the longest chain that ends in the goal; 1 for an item that is gathered by hand."""
    deep: dict[str, int] = {}
    for recipe in recipes:
        deep[recipe.item] = 1 + max((deep[item] for item in recipe.asks_for()), default=0)
    return deep[goal]


class _Tree:
    """A world while it grows, layer on layer: what is made in one layer is an ingredient only in later ones."""

    def __init__(self, number: int) -> None:
        self.random = Random(number)
        self.namer = Namer(self.random)
        self.recipes: list[Recipe] = []
        self.plain: dict[str, str] = {}
        self.apparatus: list[str] = []
        self._free: dict[int, list[int]] = {}

    def source(self, verb: str, needs: str | None = None) -> str:
        """An item that the land gives, by hand or with a tool."""
        item = self._add(verb, self._one_of((1, 1, 2)), (), needs)
        self.plain[item] = self.namer.source(verb)
        return item

    def craft(self, first: Sequence[str], others: Sequence[str], needs: str | None = None) -> str:
        """An item made by hand or at a station, from one of `first` and perhaps some of `others`."""
        made = self._add("craft", self._one_of((1, 1, 1, 1, 2)), self._ingredients(first, others), needs)
        self.plain[made] = self.namer.crafted(self.plain[self.recipes[-1].inputs[0][0]])
        return made

    def smelt(self, ore: str, fuel: Sequence[str], furnace: str) -> str:
        """An item smelted from an ore, with one of `fuel`, at a furnace."""
        made = self._add("smelt", 1, ((ore, self._one_of((1, 1, 2))), (self._one_of(fuel), 1)), furnace)
        self.plain[made] = self.namer.smelted(self.plain[ore])
        return made

    def build(self, kind: str, first: Sequence[str], others: Sequence[str], needs: str | None = None) -> str:
        """A station or a tool."""
        made = self._add("craft", 1, self._ingredients(first, others), needs)
        self.plain[made] = self.namer.built(kind, self.plain[self.recipes[-1].inputs[0][0]])
        self.apparatus.append(made)
        return made

    def _ingredients(self, first: Sequence[str], others: Sequence[str]) -> tuple[tuple[str, int], ...]:
        items = [self._one_of(first)]
        for _ in range(self._one_of(_MORE_INPUTS)):
            item = self._one_of(others)
            if item not in items:
                items.append(item)
        return tuple((item, self._one_of(_AMOUNTS)) for item in items)

    def _add(self, verb: str, makes: int, inputs: tuple[tuple[str, int], ...], needs: str | None) -> str:
        asked = [*(item for item, _ in inputs), *([needs] if needs else [])]
        level = 1 + max(map(tier, asked), default=-1)
        if level not in self._free:
            self._free[level] = list(range(INDICES))
            self.random.shuffle(self._free[level])
        item = f"m{level}_i{self._free[level].pop()}"
        self.recipes.append(Recipe(item=item, verb=verb, makes=makes, inputs=inputs, needs=needs))
        return item

    def _one_of(self, choices: Sequence[_T]) -> _T:
        return choices[int(self.random.random() * len(choices))]


def generate(number: int) -> World:
    """The world of a number: an age of hands, one of a bench and a first pick, one of a furnace, and one of a second pick."""
    tree = _Tree(number)
    raw = [tree.source("gather") for _ in range(5)]
    simple = [tree.craft(raw, raw) for _ in range(4)]
    bench = tree.build("bench", simple, raw)
    furnace = tree.build("furnace", raw, simple)
    stuff = raw + simple
    fine = [tree.craft(simple, stuff, place) for place in (None, None, bench, bench)]
    pick = tree.build("pick", fine, stuff, bench)
    ores = [tree.source("mine", pick) for _ in range(2)]
    metals = [tree.smelt(ore, raw, furnace) for ore in ores]
    stuff += fine
    worked = [tree.craft(metals, stuff, place) for place in (None, bench, bench)]
    second_pick = tree.build("pick", metals, stuff, bench)
    rare = tree.smelt(tree.source("mine", second_pick), raw, furnace)
    for place in (None, bench):
        tree.craft([rare], stuff + worked, place)
    return World(recipes=in_order(tree.recipes), plain=tree.plain, apparatus=frozenset(tree.apparatus))
