"""What an episode of crafting has in hand, and what an action does to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from envs.crafting_plan import executions, within_supply
from envs.crafting_world import Recipe


class Problem(StrEnum):
    """Why an action that could be parsed was refused."""

    UNKNOWN_ITEM = "unknown_item"
    WRONG_VERB = "wrong_verb"
    USED_UP = "used_up"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refused action: nothing changed. `missing` has (item, needed, in stock) of everything that was short."""

    problem: Problem
    verb: str = ""
    missing: tuple[tuple[str, int, int], ...] = ()


class State:
    """Stock and sources of one episode. `supply` has the executions left of every source that is finite; the others never end."""

    def __init__(
        self, *, recipes: Sequence[Recipe], goal: str, count: int, stock: Mapping[str, int], supply: Mapping[str, int] | None = None
    ) -> None:
        self.recipes = tuple(recipes)
        self.by_item = {recipe.item: recipe for recipe in recipes}
        self.goal, self.count = goal, count
        self.stock = {recipe.item: stock[recipe.item] for recipe in recipes if stock.get(recipe.item)}
        self.supply = dict(supply or {})

    @property
    def reached(self) -> bool:
        """True if the goal is in stock."""
        return self.stock.get(self.goal, 0) >= self.count

    def held(self) -> list[tuple[str, int]]:
        """(item, amount) of everything in stock, in the order of the graph."""
        stock = self.stock
        return [(item, stock[item]) for item in self.by_item if item in stock]

    def execute(self, verb: str, item: str) -> Recipe | Refusal:
        """Execute the recipe of `item` once and return it, or say why that is refused, with nothing changed."""
        recipe = self.by_item.get(item)
        if recipe is None:
            return Refusal(problem=Problem.UNKNOWN_ITEM)
        if recipe.verb != verb:
            return Refusal(problem=Problem.WRONG_VERB, verb=recipe.verb)
        if self.supply.get(item) == 0:
            return Refusal(problem=Problem.USED_UP)
        if missing := self.missing(recipe):
            return Refusal(problem=Problem.MISSING, missing=missing)
        stock = self.stock
        for name, amount in recipe.inputs:
            stock[name] -= amount
            if not stock[name]:
                del stock[name]
        stock[item] = stock.get(item, 0) + recipe.makes
        if item in self.supply:
            self.supply[item] -= 1
        return recipe

    def missing(self, recipe: Recipe) -> tuple[tuple[str, int, int], ...]:
        """(item, needed, in stock) of what is short for one execution: ingredients, then the station or tool."""
        stock = self.stock
        short = tuple((name, amount, stock.get(name, 0)) for name, amount in recipe.inputs if stock.get(name, 0) < amount)
        if recipe.needs and not stock.get(recipe.needs):
            short = (*short, (recipe.needs, 1, 0))
        return short

    def ready(self) -> list[Recipe]:
        """The recipes that can be executed now, in the order of the graph."""
        return [recipe for recipe in self.recipes if self.supply.get(recipe.item) != 0 and not self.missing(recipe)]

    def plan(self) -> dict[str, int]:
        """Executions of the shortest plan from here, in an order in which they can be done; sources are taken as endless."""
        return executions(self.recipes, self.goal, self.count, self.stock)

    def is_solvable(self) -> bool:
        """False in a dead end: no plan of any length reaches the goal with what is left. Says nothing about turns."""
        return not self.supply or within_supply(self.plan(), self.supply)
