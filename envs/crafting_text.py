"""What the crafting environment says: the prompt and the replies in both grammars, and a view of the state for a person.

In the line grammar every name has a space on both sides and every line ends with ` ;`, so that a byte-pair tokenizer that keeps at most
one leading space with a word sees a name as the same tokens wherever it stands, and a tiny policy can copy it. The head of a recipe's
line is the very action that executes it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from envs.crafting_state import Problem, Refusal, State
from envs.crafting_world import Recipe

_RULES = """You are in a crafting world. Get {count} {goal} in {turns} turns.
Write exactly one tool call a turn and nothing else, such as
{example}
Tools: gather(item), mine(item), craft(item) and smelt(item) execute the item's recipe once; {info}view_inventory() shows what you have.
A recipe uses up its ingredients. A station or tool that it needs is held, not used up. A refused call costs its turn."""
_ASK = "get_info(item) shows an item's recipe, which you are not told otherwise; "


class Voice(Protocol):
    """How an episode speaks, in one grammar."""

    def prompt(self, state: State, shown: Sequence[Recipe], turns: int) -> str:
        """The first message: the goal, the recipes that are shown, the stock, the turns."""
        ...

    def done(self, state: State, recipe: Recipe) -> str:
        """The reply to an executed recipe."""
        ...

    def refused(self, state: State, refusal: Refusal) -> str:
        """The reply to a refused action: why, with what is needed and what is there."""
        ...

    def recipe(self, state: State, recipe: Recipe) -> str:
        """The reply that tells a recipe."""
        ...

    def stock(self, state: State) -> str:
        """The reply that tells the stock."""
        ...


class LineVoice:
    """Terse and regular, for the line grammar."""

    def __init__(self, names: Mapping[str, str], *, ready: bool) -> None:
        self._names = names
        self._ready = ready

    def prompt(self, state: State, shown: Sequence[Recipe], turns: int) -> str:
        """See `Voice`."""
        lines = [
            f"goal {state.count} {self._names[state.goal]} ;",
            f"turns {turns} ;",
            *(self.recipe(state, recipe) for recipe in shown),
            self.stock(state),
        ]
        return "\n".join(lines)

    def done(self, state: State, recipe: Recipe) -> str:
        """See `Voice`."""
        left = self._left(state, recipe)
        return f"{self.stock(state)}{left} ;" if left else self.stock(state)

    def refused(self, state: State, refusal: Refusal) -> str:
        """See `Voice`."""
        why = self._why(refusal)
        return f"{why}\n{self.stock(state)}" if self._ready else why

    def _why(self, refusal: Refusal) -> str:
        match refusal.problem:
            case Problem.UNKNOWN_ITEM:
                return "no such item ;"
            case Problem.WRONG_VERB:
                return f"no , {refusal.verb} it ;"
            case Problem.USED_UP:
                return "no , none left ;"
            case Problem.MISSING:
                short = (f"need {need} have {have} {self._names[item]} ;" for item, need, have in refusal.missing)
                return f"no , {' '.join(short)}"

    def recipe(self, state: State, recipe: Recipe) -> str:
        """See `Voice`."""
        inputs = "".join(f" {amount} {self._names[item]}" for item, amount in recipe.inputs)
        place = f" @ {self._names[recipe.needs]}" if recipe.needs else ""
        head = f"{recipe.verb} {self._names[recipe.item]} x{recipe.makes}"
        return f"{head}{' :' if inputs else ''}{inputs}{place}{self._left(state, recipe)} ;"

    def stock(self, state: State) -> str:
        """See `Voice`."""
        held = "".join(f" {amount} {self._names[item]}" for item, amount in state.held())
        have = f"have{held or ' nothing'} ;"
        if not self._ready:
            return have
        names, stock = self._names, state.stock
        can = "".join(f" {stock.get(recipe.item, 0)} {recipe.verb} {names[recipe.item]}" for recipe in state.ready())
        return f"{have}\ncan{can or ' nothing'} ;"

    def _left(self, state: State, recipe: Recipe) -> str:
        return f" left {state.supply[recipe.item]}" if recipe.item in state.supply else ""


class JsonVoice:
    """Sentences in the prompt and JSON in the replies, for tool calls."""

    def __init__(self, names: Mapping[str, str], *, ready: bool, asked: bool, example: str) -> None:
        self._names = names
        self._ready, self._asked, self._example = ready, asked, example

    def prompt(self, state: State, shown: Sequence[Recipe], turns: int) -> str:
        """See `Voice`."""
        info = _ASK if self._asked else "get_info(item) repeats an item's recipe; "
        rules = _RULES.format(count=state.count, goal=self._names[state.goal], turns=turns, example=self._example, info=info)
        lines = [rules, *(["Recipes:"] if shown else []), *(self.recipe(state, recipe) for recipe in shown)]
        return "\n".join([*lines, json.dumps(self._status(state))])

    def done(self, state: State, recipe: Recipe) -> str:
        """See `Voice`."""
        left = {"left": state.supply[recipe.item]} if recipe.item in state.supply else {}
        return json.dumps({"ok": True, **self._status(state), **left})

    def refused(self, state: State, refusal: Refusal) -> str:
        """See `Voice`."""
        answer: dict[str, object] = {"ok": False, "error": refusal.problem.value}
        if refusal.verb:
            answer["use"] = refusal.verb
        if refusal.missing:
            answer["need"] = {self._names[item]: need for item, need, _ in refusal.missing}
            answer["have"] = {self._names[item]: have for item, _, have in refusal.missing}
        return json.dumps(answer | self._status(state) if self._ready else answer)

    def recipe(self, state: State, recipe: Recipe) -> str:
        """See `Voice`."""
        told: dict[str, object] = {"item": self._names[recipe.item], "tool": recipe.verb, "makes": recipe.makes}
        if recipe.inputs:
            told["uses"] = {self._names[item]: amount for item, amount in recipe.inputs}
        if recipe.needs:
            told["needs"] = self._names[recipe.needs]
        if recipe.item in state.supply:
            told["left"] = state.supply[recipe.item]
        return json.dumps(told)

    def stock(self, state: State) -> str:
        """See `Voice`."""
        return json.dumps({"ok": True, **self._status(state)})

    def _status(self, state: State) -> dict[str, object]:
        status: dict[str, object] = {"inventory": {self._names[item]: amount for item, amount in state.held()}}
        if self._ready:
            status["can"] = [[recipe.verb, self._names[recipe.item]] for recipe in state.ready()]
        return status


def voice(grammar: str, names: Mapping[str, str], *, ready: bool, asked: bool, example: str) -> Voice:
    """The voice of a grammar; with `ready` it says after every action what can be done now."""
    return LineVoice(names, ready=ready) if grammar == "line" else JsonVoice(names, ready=ready, asked=asked, example=example)


def view(state: State, shown: Sequence[Recipe], names: Mapping[str, str], turns_left: int) -> str:
    """The state for a person: what each shown recipe has and lacks, what can be done now (`>`), the stock, the turns left."""
    have = state.stock
    rows = []
    for recipe in shown:
        parts = [f"{min(have.get(item, 0), amount)}/{amount} {names[item]}" for item, amount in recipe.inputs]
        if recipe.needs:
            parts.append(f"{'at' if have.get(recipe.needs) else 'needs'} {names[recipe.needs]}")
        if recipe.item in state.supply:
            parts.append(f"{state.supply[recipe.item]} left")
        ready = state.supply.get(recipe.item) != 0 and not state.missing(recipe)
        makes = f" x{recipe.makes}" if recipe.makes > 1 else ""
        rows.append((">" if ready else " ", f"{recipe.verb} {names[recipe.item]}{makes}", ", ".join(parts)))
    width = max((len(head) for _, head, _ in rows), default=0)
    held = ", ".join(f"{amount} {names[item]}" for item, amount in state.held())
    goal = f"Goal: {state.count} {names[state.goal]}   ({have.get(state.goal, 0)} made, {turns_left} turns left; > can be done now)"
    return "\n".join([goal, *(f" {mark} {head:<{width}}  {parts}".rstrip() for mark, head, parts in rows), f"Bag:  {held or 'empty'}"])
