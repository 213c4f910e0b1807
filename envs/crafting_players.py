"""Scripted players of crafting. They read the task, follow their own actions in a state of their own, and ask where recipes are asked."""

from collections.abc import Callable, Mapping
from random import Random

from envs.contract import Player, Task
from envs.crafting_actions import GRAMMARS, Action
from envs.crafting_state import State
from envs.crafting_tasks import read
from envs.crafting_world import Recipe, closure, tier

Choice = Callable[[State, set[str], Random], Recipe]
"""Picks one of the recipes that can be executed now, given the goal's closure."""


class _Crafter:
    """Asks for every recipe that the shortest plan has, from the goal down, if they are not shown; then lets `choose` pick."""

    def __init__(self, task: Task, seed: int, choose: Choice) -> None:
        self._state, self._names = read(task)
        self._closure = {recipe.item for recipe in closure(self._state.recipes, self._state.goal)}
        self._asks = list(self._state.plan()) if task.data["asked"] else []
        self._choose = choose
        self._random = Random(seed)
        self._write = GRAMMARS[task.data["grammar"]][1]

    def act(self, observation: str | None) -> str:
        """The next action; nothing in the replies is news, because the world has no chance in it."""
        if self._asks:
            return self._write(Action(verb="info", item=self._names[self._asks.pop()]))
        recipe = self._choose(self._state, self._closure, self._random)
        self._state.execute(recipe.verb, recipe.item)
        return self._write(Action(verb=recipe.verb, item=self._names[recipe.item]))


def _planned(state: State, closure: set[str], random: Random) -> Recipe:
    plan = state.plan()
    return next(recipe for recipe in state.ready() if recipe.item in plan)


def _any(state: State, closure: set[str], random: Random) -> Recipe:
    return random.choice(state.ready())


def _in_closure(state: State, closure: set[str], random: Random) -> Recipe:
    return random.choice([recipe for recipe in state.ready() if recipe.item in closure])


def _highest(state: State, closure: set[str], random: Random) -> Recipe:
    ready = [recipe for recipe in state.ready() if recipe.item in closure]
    most = max(tier(recipe.item) for recipe in ready)
    return random.choice([recipe for recipe in ready if tier(recipe.item) == most])


def _player(choose: Choice) -> Callable[[Task, int], Player]:
    return lambda task, seed: _Crafter(task, seed, choose)


PLAYERS: Mapping[str, Callable[[Task, int], Player]] = {
    "oracle": _player(_planned),
    "plausible": _player(_in_closure),
    "random": _player(_any),
    "greedy": _player(_highest),
}
"""oracle: a shortest plan. plausible: at random among what the goal can depend on. random: among everything that can be done.
greedy: as plausible, but always of the highest tier, needed or not."""
