"""TextCraft-Synth: craft a goal from an inventory, in a fixed world of 1,452 items, with the tools of the package `platoon-textcraft`.

The package's own game answers the calls, so that results, errors and the grade are its own: `finish` with a message pays 1 if the goal
was gained beyond the starting inventory, and nothing else pays. Different from its server are the turns, one tool call each, and the
reply to `finish`, which says how the episode ended instead of repeating the message.
"""

import json
from collections.abc import Mapping

from envs.contract import End, EnvSpec, Message, Step, Task
from envs.crafting_plan import executions
from envs.metrics import Reduction
from envs.textcraft_synth_actions import parse
from envs.textcraft_synth_players import PLAYERS
from envs.textcraft_synth_tasks import TextcraftSynthParams, at_level, best_success, levels, max_turns, start, tasks
from envs.textcraft_synth_world import needed, world
from envs.tool_call import ToolCall, write_tool_call

MAX_UNPARSABLE = 3
_CRAFTED = "Successfully crafted"
_NOTES = {
    End.SOLVED: "Goal reached.",
    End.FAILED: "The goal was not reached.",
    End.OUT_OF_TURNS: "Out of turns.",
    End.INVALID_ACTIONS: f"{MAX_UNPARSABLE} turns in a row without a tool call.",
}
_EXAMPLE = write_tool_call("craft", {"ingredients": {"a1": 4, "b1": 2}, "target": ["c1", 6]})
_RULES = f"""\
You have an inventory and four tools. Reach the goal by crafting, then finish. Each turn, write one tool call and nothing else.

craft, with "ingredients" {{item: amount}} and "target" [item, total]: executes the item's recipe as often as makes the total, a multiple \
of what one execution makes (result_count). The ingredients are those of the recipe, no more and no fewer, each with its amount for all \
executions together.
get_info, with "items" [item, ...]: tells each item's recipe, how many of it you hold, and whether it is a base item, which no recipe makes.
view_inventory, without arguments: tells what you hold.
finish, with "message" text: ends the episode. Only a finish, with a message that is not empty, can succeed.

A recipe that makes 3 c1 from 2 a1 and 1 b1 is executed twice by
{_EXAMPLE}
Ingredients are used up, and there are no more base items than you begin with."""


class TextcraftSynth:
    """One episode. A call that cannot be read or is refused changes nothing and costs its turn like any other."""

    def __init__(self, task: Task) -> None:
        self._goal, self._wanted, stock, self._turns_left = start(task)
        self._gain = task.data["target"][self._goal]
        shared = world()
        self._game = shared.game(shared.book, {"goal": "", "target_items": task.data["target"], "initial_inventory": stock})
        self._needed = {recipe.item for recipe in needed(self._goal)}
        self._length = sum(self._plan().values())
        self._refused = self._unparsable = self._in_a_row = self._lookups = self._strays = 0
        self._finished = self._ended = False

    def start(self) -> tuple[Message, ...]:
        """The rules and the tools as the system's message; the goal, the inventory and the turns as the user's."""
        goal = f"Goal: gain {self._gain} {self._goal}\nInventory: {json.dumps(self._game.inventory)}\nTurns: {self._turns_left}"
        return Message(role="system", content=_RULES), Message(role="user", content=goal)

    def step(self, text: str) -> Step:
        """Take one tool call."""
        assert not self._ended, "step was called after the episode had ended"
        self._turns_left -= 1
        call = parse(text)
        if isinstance(call, str):
            self._unparsable += 1
            self._in_a_row += 1
            return self._answer(call, End.INVALID_ACTIONS if self._in_a_row == MAX_UNPARSABLE else None, valid=False)
        self._in_a_row = 0
        match call.name:
            case "craft":
                return self._craft(call)
            case "get_info":
                self._lookups += 1
                return self._answer(json.dumps(self._game.get_info(call.arguments["items"])))
            case "view_inventory":
                return self._answer(json.dumps(self._game.inventory))
        self._finished = True
        score, _ = self._game.evaluate(call.arguments.get("message", ""))
        return self._answer("", End.SOLVED if score == 1 else End.FAILED)

    def summary(self) -> Mapping[str, float]:
        """How the episode went. `reached` without `finished` is a goal in hand that scores 0."""
        plan = self._plan()
        missing = sum(times for recipe in needed(self._goal) if recipe.inputs and (times := plan.get(recipe.item, 0)))
        return {
            "progress": max(1 - missing / self._length, 0.0),
            "reached": float(not plan),
            "finished": float(self._finished),
            "strays": float(self._strays),
            "dead_end": float(any(not recipe.inputs and recipe.item in plan for recipe in needed(self._goal))),
            "lookups": float(self._lookups),
            "refused": float(self._refused),
            "unparsable": float(self._unparsable),
        }

    def view(self) -> str:
        """The goal and the inventory, for a person."""
        stock = self._game.inventory
        held = ", ".join(f"{count} {item}" for item, count in stock.items())
        return f"Goal: {self._wanted} {self._goal}   ({stock.get(self._goal, 0)} held, {self._turns_left} turns left)\nBag:  {held}"

    def _craft(self, call: ToolCall) -> Step:
        reply: str = self._game.craft(call.arguments["ingredients"], call.arguments["target"])
        if not reply.startswith(_CRAFTED):
            self._refused += 1
            return self._answer(reply, valid=False)
        self._strays += call.arguments["target"][0] not in self._needed
        return self._answer(reply)

    def _plan(self) -> dict[str, int]:
        """The shortest plan from here; it has a base item if more of it is needed than there is."""
        return executions(needed(self._goal), self._goal, self._wanted, self._game.inventory)

    def _answer(self, reply: str, end: End | None = None, *, valid: bool = True) -> Step:
        if end is None and self._turns_left == 0:
            end = End.OUT_OF_TURNS
        if end is not None:
            self._ended = True
            reply = f"{reply}\n{_NOTES[end]}" if reply else _NOTES[end]
        return Step(observation=reply, reward=float(end is End.SOLVED), end=end, valid=valid)


SPEC = EnvSpec(
    name="textcraft_synth",
    summary="Craft a goal with four tools in the fixed world of the package platoon-textcraft.",
    params=TextcraftSynthParams,
    tasks=tasks,
    make=TextcraftSynth,
    players=PLAYERS,
    metrics=dict.fromkeys(("progress", "reached", "finished", "strays", "dead_end", "lookups", "refused", "unparsable"), Reduction.MEAN),
    max_turns=max_turns,
    best_success=best_success,
    view=TextcraftSynth.view,
    levels=levels,
    at_level=at_level,
)
