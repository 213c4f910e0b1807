"""The JSON tool call, as chat models write it: exactly one call, or a sentence that says what is wrong with the text.

Strict and total: nothing is stripped but the white space that JSON allows, and every text has an answer. The sentences never repeat
the text, so that control tokens in it cannot reach the next prompt.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

_TAGGED = re.compile(r"<tool_call>(.*)</tool_call>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call: `name` and `arguments` are what the policy wrote, and only their JSON types are known to be right."""

    name: str
    arguments: dict[str, Any]


def parse_tool_call(text: str, *, longest: int) -> ToolCall | str:
    """The call of a JSON object with `name` and `arguments`, in `<tool_call>` tags or bare, of at most `longest` characters.

    >>> parse_tool_call('<tool_call>{"name": "look", "arguments": {}}</tool_call>', longest=100)
    ToolCall(name='look', arguments={})
    >>> parse_tool_call('{"name": "look", "arguments": {}} please', longest=100)
    'That is not one JSON object; write one tool call and nothing else.'
    """
    if len(text) > longest:
        return f"More than {longest} characters; write one tool call."
    if text.count("<tool_call>") > 1 or text.count('"arguments"') > 1:
        return "More than one tool call in one turn; write exactly one."
    if "<tool_call>" in text:
        inside = _TAGGED.fullmatch(text)
        if inside is None:
            return "Text around the tool call; write the call and nothing else."
        text = inside[1]
    if not text:
        return "Nothing was written; write one tool call."
    try:
        call = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return "That is not one JSON object; write one tool call and nothing else."
    match call:
        case {"name": str(name), "arguments": dict(arguments), **others} if not others:
            return ToolCall(name=name, arguments=arguments)
    return 'A tool call is a JSON object with "name", a text, and "arguments", an object, and nothing else.'


def write_tool_call(name: str, arguments: dict[str, Any]) -> str:
    """The text that `parse_tool_call` reads as this call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
