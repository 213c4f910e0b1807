"""The four tools of TextCraft-Synth: what a call must look like before the package's game answers it.

The game's answers repeat names and amounts of the call. So names of other characters than its world has, and numbers of more than nine
digits, are refused here, in sentences that never repeat the text.
"""

import re
from typing import Any

from envs.crafting_world import Recipe
from envs.tool_call import ToolCall, parse_tool_call, write_tool_call

LONGEST = 2000
TOOLS = {"craft": ("ingredients", "target"), "get_info": ("items",), "view_inventory": (), "finish": ("message",)}
"""The arguments of each tool. A `finish` without its message is one with an empty message."""
_NAME = re.compile(r"[a-z0-9_]{1,32}")
_MOST = 10**9


def parse(text: str) -> ToolCall | str:
    """The call that a text is, safe to give to the game; otherwise a sentence that says what is wrong.

    >>> parse('{"name": "craft", "arguments": {"ingredients": {"raw_t0": 1}, "target": ["t6_i1_16", 3]}}')
    ToolCall(name='craft', arguments={'ingredients': {'raw_t0': 1}, 'target': ['t6_i1_16', 3]})
    """
    call = parse_tool_call(text, longest=LONGEST)
    return call if isinstance(call, str) else _problem(call) or call


def craft(recipe: Recipe, times: int) -> str:
    """The text of the call that executes a recipe `times` times."""
    ingredients = {item: amount * times for item, amount in recipe.inputs}
    return write_tool_call("craft", {"ingredients": ingredients, "target": [recipe.item, recipe.makes * times]})


def finish() -> str:
    """The text of the call that ends the episode."""
    return write_tool_call("finish", {"message": "done"})


def _problem(call: ToolCall) -> str | None:
    if call.name not in TOOLS:
        return f"There is no such tool; the tools are {', '.join(TOOLS)}."
    arguments = TOOLS[call.name]
    if call.arguments.keys() != set(arguments) and not (call.name == "finish" and not call.arguments):
        return f"The arguments of {call.name} are {', '.join(arguments) or 'none, an empty object'}, and nothing else."
    match call.name:
        case "craft":
            return _craft_problem(call.arguments["ingredients"], call.arguments["target"])
        case "get_info":
            items = call.arguments["items"]
            return None if isinstance(items, list) and all(map(_is_name, items)) else "items is a list of item names."
        case "finish" if not isinstance(call.arguments.get("message", ""), str):
            return "message is a text."
    return None


def _craft_problem(ingredients: Any, target: Any) -> str | None:
    """What of a craft the game must not see. Wrong types are its own to answer: it names them and repeats nothing."""
    pairs = list(ingredients.items()) if isinstance(ingredients, dict) else []
    if isinstance(target, list) and len(target) == 2:
        pairs.append((target[0], target[1]))
    if not all(_is_name(name) for name, _ in pairs if isinstance(name, str)):
        return "An item name has lower-case letters, digits and _ only, at most 32."
    if any(isinstance(amount, int) and abs(amount) >= _MOST for _, amount in pairs):
        return "An amount has at most 9 digits."
    return None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
