"""What is wrong with an environment's answer, in words; None if nothing is.

Used where answers of unknown environments come in: the contract checker and the process border.
"""

import sys
from collections.abc import Mapping

from envs.contract import End, Message, Step

ROLES = ("system", "user", "assistant", "tool")


def messages_problem(messages: object) -> str | None:
    """What is wrong with the answer of `Env.start`."""
    if not isinstance(messages, tuple | list) or not messages:
        return f"start returned {_shown(messages)}; expected a non-empty tuple of Message"
    for message in messages:
        content: object = message.content if isinstance(message, Message) else None
        if not isinstance(content, str):
            return f"start returned {_shown(message)} among the messages; expected Message(role=..., content=text)"
        if message.role not in ROLES:
            return f"start returned a message of role {message.role!r}; expected one of {', '.join(ROLES)}"
    return None


def step_problem(step: object) -> str | None:
    """What is wrong with the answer of `Env.step`. A bool is not a reward: True would pass for 1.0 without anybody meaning it.

    The fields are read as plain objects, because a dataclass does not enforce the types that it declares.
    """
    if not isinstance(step, Step):
        return f"step returned {_shown(step)}; expected a Step"
    observation: object = step.observation
    valid: object = step.valid
    end: object = step.end
    if not isinstance(observation, str):
        return f"the observation is {_shown(observation)}; expected text"
    if not _is_number(step.reward):
        return f"the reward is {_shown(step.reward)}; expected a finite number (1.0 or 0.0 by default)"
    if not isinstance(valid, bool):
        return f"valid is {_shown(valid)}; expected True or False"
    if end is not None and not isinstance(end, End):
        return f"the end is {_shown(end)}; expected a member of End, or None"
    if end in (End.OUT_OF_TOKENS, End.ENV_ERROR):
        return f"the end is {end}, which only the caller can know; an environment that fails raises"
    return None


def summary_problem(summary: object) -> str | None:
    """What is wrong with the answer of `Env.summary`."""
    if not isinstance(summary, Mapping):
        return f"summary returned {_shown(summary)}; expected a mapping from names to numbers"
    for name, value in summary.items():
        if not isinstance(name, str) or not _is_number(value):
            return f"summary has {_shown(name)}: {_shown(value)}; expected a name and a finite number"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _shown(value: object) -> str:
    """Short, and of the type too: the whole of a large answer would flood a log. Only str and numbers are trusted to print themselves."""
    kind = type(value).__name__
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"a huge {kind}"
    return f"{value!r:.60} ({kind})" if isinstance(value, str | int | float | None) else f"an object of type {kind}"
