"""A hint in the prompt, and the same episode without it."""

from collections.abc import Sequence
from dataclasses import replace

from envs.contract import Message
from rollout.types import Departure, Trajectory


def hinted(messages: Sequence[Message], hint: str) -> tuple[Message, ...]:
    """The messages with the hint on a new line at the end of the last one."""
    *before, last = messages
    return (*before, replace(last, content=f"{last.content}\n{hint}"))


def with_prompt(trajectory: Trajectory, prompt: tuple[int, ...]) -> Trajectory:
    """The episode as if `prompt` had stood where its own prompt is: all tokens before the first sampled one.

    The log-probs stay the sampler's, which read the other prompt: r = pi(a | h) / pi(a | h, hint) is a true importance ratio.
    """
    stop = trajectory.turns[0].start if trajectory.turns else len(trajectory.token_ids)
    unsampled = len(prompt)
    return replace(
        trajectory,
        token_ids=(*prompt, *trajectory.token_ids[stop:]),
        action_mask=(0,) * unsampled + trajectory.action_mask[stop:],
        logp_old=(0.0,) * unsampled + trajectory.logp_old[stop:],
        turns=tuple(replace(turn, start=turn.start - stop + unsampled) for turn in trajectory.turns),
        departures=(*trajectory.departures, Departure.HINT),
    )
