"""The two grammars of actions, a line and a JSON tool call, and the one thing that both are parsed to.

Both parsers are strict and total: exactly one action, nothing stripped, every other text has a sentence that says what is wrong.
The sentences never repeat the text, so that control tokens in it cannot reach the next prompt.
"""

import re
from dataclasses import dataclass

from envs.tool_call import parse_tool_call, write_tool_call

VERBS = ("gather", "mine", "craft", "smelt")
"""What a recipe can be executed by. `info` asks for a recipe and `stock` for the stock."""
LONGEST = 300

_NAME = r"[a-z0-9_]{1,32}(?: [a-z0-9_]{1,32}){0,3}"
_ITEM = re.compile(_NAME)
_LINE = re.compile(rf"(gather|mine|craft|smelt|info) ({_NAME})|stock")
_WORD = re.compile(r"\b(?:gather|mine|craft|smelt|info|stock)\b")
_TOOLS = {**{verb: verb for verb in VERBS}, "get_info": "info", "view_inventory": "stock"}
_TOOL_OF = {verb: tool for tool, verb in _TOOLS.items()}


@dataclass(frozen=True, kw_only=True)
class Action:
    """One parsed action: `verb` is one of `VERBS`, `info` or `stock`; `item` is the name as the policy wrote it, "" for `stock`."""

    verb: str
    item: str = ""


def parse_line(text: str) -> Action | str:
    """The action of a line such as `craft oak plank`, `info oak plank` or `stock`; otherwise what is wrong.

    >>> parse_line("craft m2_i5")
    Action(verb='craft', item='m2_i5')
    >>> parse_line("craft m2_i5!")
    'That is no item name; write one action such as craft m1_i2 and nothing else.'
    """
    if len(text) > LONGEST:
        return f"More than {LONGEST} characters; write one action."
    words = _WORD.findall(text)
    if len(words) > 1:
        return f"{len(words)} actions in one turn; write exactly one."
    if whole := _LINE.fullmatch(text):
        return Action(verb=whole[1] or "stock", item=whole[2] or "")
    if not text:
        return "Nothing was written; write one action."
    if words and text.startswith(words[0]):
        return "That is no item name; write one action such as craft m1_i2 and nothing else."
    if words:
        return "Text around the action; write the action and nothing else."
    return "No action was found; write gather, mine, craft, smelt or info and an item, or stock."


def parse_call(text: str) -> Action | str:
    """The action of a tool call such as `{"name": "craft", "arguments": {"item": "oak plank"}}`; otherwise what is wrong.

    The call may stand between `<tool_call>` and `</tool_call>`, as many chat templates write it. White space is allowed where JSON
    allows it and nowhere else.

    >>> parse_call('<tool_call>{"name": "get_info", "arguments": {"item": "oak plank"}}</tool_call>')
    Action(verb='info', item='oak plank')
    """
    call = parse_tool_call(text, longest=LONGEST)
    if isinstance(call, str):
        return call
    verb = _TOOLS.get(call.name)
    if verb is None:
        return f"There is no such tool; the tools are {', '.join(_TOOLS)}."
    if verb == "stock":
        return "view_inventory takes no arguments; write an empty object." if call.arguments else Action(verb=verb)
    item = call.arguments.get("item") if len(call.arguments) == 1 else None
    if not isinstance(item, str) or not _ITEM.fullmatch(item):
        return f'{call.name} takes exactly one argument, "item", the name of an item.'
    return Action(verb=verb, item=item)


def write_line(action: Action) -> str:
    """The line that `parse_line` reads as the action."""
    return f"{action.verb} {action.item}" if action.item else action.verb


def write_call(action: Action) -> str:
    """The tool call that `parse_call` reads as the action."""
    return write_tool_call(_TOOL_OF[action.verb], {"item": action.item} if action.item else {})


GRAMMARS = {"line": (parse_line, write_line), "json": (parse_call, write_call)}
"""How each grammar is read and written."""
