"""Scripted players of TextCraft-Synth. They know the recipes and keep the inventory themselves.

They finish when they hold the goal or are stuck.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from envs.contract import Player, Task
from envs.crafting_plan import executions
from envs.crafting_world import Recipe
from envs.textcraft_synth_actions import craft, finish
from envs.textcraft_synth_tasks import start
from envs.textcraft_synth_world import needed, world


class _Planner:
    """Each item of the shortest plan in one call, from the bottom up. The package's plan has as many calls, and often makes too much."""

    def __init__(self, task: Task, seed: int) -> None:
        goal, count, stock, _ = start(task)
        self._plan = iter(executions(needed(goal), goal, count, stock).items())
        self._by_item = {recipe.item: recipe for recipe in needed(goal)}

    def act(self, observation: str | None) -> str:
        """The next action of the plan."""
        item, times = next(self._plan, ("", 0))
        return craft(self._by_item[item], times) if item else finish()


class _Crafter:
    """One of the recipes that can be executed now, at random, once."""

    def __init__(self, task: Task, seed: int, choices: Callable[[str], Sequence[Recipe]]) -> None:
        self._goal, self._count, self._stock, _ = start(task)
        self._recipes = [recipe for recipe in choices(self._goal) if recipe.inputs]
        self._random = Random(seed)

    def act(self, observation: str | None) -> str:
        """The next action; nothing in the replies is news, because the world has no chance in it."""
        stock = self._stock
        ready = [recipe for recipe in self._recipes if all(stock.get(item, 0) >= amount for item, amount in recipe.inputs)]
        if stock.get(self._goal, 0) >= self._count or not ready:
            return finish()
        recipe = self._random.choice(ready)
        for item, amount in recipe.inputs:
            stock[item] -= amount
        stock[recipe.item] = stock.get(recipe.item, 0) + recipe.makes
        return craft(recipe, 1)


PLAYERS: Mapping[str, Callable[[Task, int], Player]] = {
    "oracle": _Planner,
    "plausible": lambda task, seed: _Crafter(task, seed, needed),
    "random": lambda task, seed: _Crafter(task, seed, lambda goal: world().recipes),
}
"""oracle: the shortest plan. plausible: at random among what the goal can depend on. random: among everything that can be crafted."""
