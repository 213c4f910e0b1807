"""The exact solver of the crafting environment: how often each recipe is executed in the shortest plan.

Items are processed from the top of the graph. When an item's turn comes, everything that consumes it is settled, so that what is
wanted of it is known, and

    executions = max(0, ceil((wanted - stock) / makes)),    wanted = sum of (amount x executions) of its consumers,

where a station or tool that an executed recipe needs, and the goal itself, are wanted too. Every number is the smallest that any
plan can have, all at the same time, because wants grow with executions and with nothing else. So their sum is the smallest number of
actions, and executing the recipes from the bottom up is a plan. The time is linear in the size of the graph.

This holds because every item has one recipe and stations and tools are never an ingredient.
"""

from collections.abc import Mapping, Sequence

from envs.crafting_world import Recipe


def executions(recipes: Sequence[Recipe], goal: str, count: int, stock: Mapping[str, int]) -> dict[str, int]:
    """How often each item's recipe is executed in a shortest plan to hold `count` of `goal`; items that need none are left out.

    `recipes` come after everything they ask for, and the answer is in the same order: executing it from first to last is a plan.
    """
    consumed: dict[str, int] = {}
    held: dict[str, int] = {goal: count}
    plan: dict[str, int] = {}
    for recipe in reversed(recipes):
        item = recipe.item
        missing = max(consumed.get(item, 0), held.get(item, 0)) - stock.get(item, 0)
        if missing <= 0:
            continue
        times = -(-missing // recipe.makes)
        plan[item] = times
        for name, amount in recipe.inputs:
            consumed[name] = consumed.get(name, 0) + amount * times
        if recipe.needs:
            held.setdefault(recipe.needs, 1)
    return dict(reversed(plan.items()))


def within_supply(plan: Mapping[str, int], supply: Mapping[str, int]) -> bool:
    """True if no source is used more often than it can be; `supply` has the executions left of every source that is finite.

    A shortest plan uses every source as little as any plan does, so False means that no plan at all is left.
    """
    return all(plan.get(item, 0) <= left for item, left in supply.items())
