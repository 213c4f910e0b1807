"""Weights of an environment's levels in training: how the settings of environments with several levels are read."""

import math
from collections.abc import Sequence
from typing import Any

from envs.errors import did_you_mean


def as_weights(value: Any) -> Any:
    """A single level, written as its name, as weights; anything else as it is.

    >>> as_weights("L3")
    {'L3': 1.0}
    """
    return {value: 1.0} if isinstance(value, str) else value


def check_weights(weights: dict[str, float], known: Sequence[str], *, noun: str, field: str) -> dict[str, float]:
    """The weights in the order of `known`, easiest first; one with weight 0 is only evaluated. Raises `ValueError` for weights that
    nothing can be drawn by; `noun` is what the environment calls a level and `field` the setting that has them.
    """
    for level, weight in weights.items():
        if level not in known:
            raise ValueError(f"there is no {noun} {level!r}: {did_you_mean(level, list(known))}")
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"the weight of {level} is {weight}; expected a number of 0 or more")
    if not any(weights.values()):
        raise ValueError(f"{field}={weights} gives no {noun} a weight above 0, so nothing can be trained on")
    return {level: weights[level] for level in known if level in weights}


def trained(weights: dict[str, float]) -> tuple[str, ...]:
    """The levels that are trained on, in the order of the weights."""
    return tuple(level for level, weight in weights.items() if weight)
