"""What to do about the groups of a preflight, in words: a pure function of its numbers.

One threshold serves for all events of an episode, such as a success or a truncation: an event is RARE if fewer than half of the
groups contain one. With rate p an event is in a group of G with probability `1 - (1 - p)^G`, so rare means `p < 1 - 2^(-1/G)`: 8.3 % for
G = 8, 4.2 % for G = 16. Likewise groups with a gradient are FEW if they are less than half: then most of the sampling is wasted.
"""

import math
from dataclasses import dataclass
from typing import Literal

from cluster.checks.preflight import Preflight

_FEW = 0.5
_INVALID = 0.1  # a tenth of what the policy says never reaches the world: its format is worth more than its play
_AT_BEST = 0.97  # of the best possible success; what is left is within the noise of an evaluation


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A sentence or two about one subject; `good` if nothing is to be done."""

    subject: Literal["environment", "turn_limit", "context_limit", "format", "too_hard", "too_easy", "uneven", "precision", "groups"]
    good: bool = False
    text: str


def informative(p: float, size: int) -> float:
    """The share of groups of `size` with both a success and a failure, `1 - p^G - (1 - p)^G`, if every episode succeeds with `p`.

    It is concave in p, so that tasks of unequal difficulty have fewer such groups than their mean success promises.

    >>> informative(0.5, 2)
    0.5
    """
    return 1 - p**size - (1 - p) ** size


def rare(size: int) -> float:
    """The rate below which fewer than half of the groups of `size` contain an event.

    >>> round(rare(8), 3)
    0.083
    """
    return 1 - 2 ** (-1 / size)


def advise(seen: Preflight) -> list[Advice]:
    """What stands in the way first comes first; at the end, what the groups are worth."""
    found = [_environment(seen), *_limits(seen), _format(seen), _groups(seen), _precision(seen)]
    return [one for one in found if one is not None]


def _environment(seen: Preflight) -> Advice | None:
    if not seen.failed:
        return None
    return Advice(
        subject="environment",
        text=f"The environment failed in {seen.failed} of {seen.groups + seen.failed} groups, which were dropped. Look for the reason with "
        "envs.check.check_env before you train: every such group is paid for and lost.",
    )


def _limits(seen: Preflight) -> list[Advice]:
    limit = rare(seen.group_size)
    found = []
    why = "more than half of all groups contain one, and it counts as a failure that the world never decided"
    if seen.cut_turns > limit:
        text = (
            f"{seen.cut_turns:.0%} of the episodes were cut by rollout.max_turn_tokens={seen.max_turn_tokens}: {why}. Raise it (95 % of "
            f"the turns take {seen.turn_tokens_p95:g} tokens or less), or start from demonstrations if the policy never ends its turns."
        )
        found.append(Advice(subject="turn_limit", text=text))
    if seen.cut_contexts > limit:
        text = (
            f"{seen.cut_contexts:.0%} of the episodes were cut by rollout.max_context_tokens={seen.max_context_tokens}: {why}. Raise it, "
            f"or lower rollout.max_turn_tokens={seen.max_turn_tokens} so that all turns fit."
        )
        found.append(Advice(subject="context_limit", text=text))
    return found


def _format(seen: Preflight) -> Advice | None:
    if seen.invalid_turns <= _INVALID:
        return None
    remedy = (
        "imitate more: raise cold_start.episodes or cold_start.epochs"
        if seen.cold_started
        else "start from demonstrations (cold_start.episodes=1000), or say in the prompt what an action looks like"
    )
    return Advice(
        subject="format",
        text=f"{seen.invalid_turns:.0%} of the turns are no valid action; {remedy}. A higher temperature makes this worse.",
    )


def _groups(seen: Preflight) -> Advice:
    """One verdict on success: done, too hard, too easy, uneven, or good."""
    p, size = seen.success.value, seen.group_size
    if p >= _AT_BEST * seen.best_success:
        text = (
            f"Success is {p:.3f}, the best possible is {seen.best_success:.4g}: there is nothing left to learn here. Take a harder level "
            "(env.params)."
        )
        return Advice(subject="too_easy", text=text)
    if not seen.compares_siblings:  # then a step is what must contain a success
        return _too_hard(seen) if p < rare(size * seen.groups_per_step) else _good(seen)
    if seen.mixed.value >= _FEW:
        return _good(seen)
    if size > 1 and informative(p, size) >= _FEW:
        return _uneven(seen)
    return _too_hard(seen) if p < 0.5 else _too_easy(seen)


def _too_hard(seen: Preflight) -> Advice:
    p, episodes = seen.success.value, seen.groups * seen.group_size
    learn_first = "imitate more (cold_start.episodes, cold_start.epochs)" if seen.cold_started else "start from demonstrations (cold_start)"
    helped = ", or give a hint or a demonstration (dead_groups)" if seen.compares_siblings else ""
    if p == 0:
        return Advice(
            subject="too_hard",
            text=f"Not one of {episodes} episodes succeeded, so success is below {3 / episodes:.2g} (rule of three) and nothing can be "
            f"reinforced. Siblings and temperature cannot help: {learn_first}, take an easier level (env.params){helped}.",
        )
    waste = f"{seen.all_zero.value:.0%} of the groups contain no success" + (" and carry no gradient" if seen.compares_siblings else "")
    siblings = math.ceil(math.log(_FEW) / math.log(1 - p))
    more = (
        f", or raise rollout.group_size to {siblings}, with which half of the groups contain a success"
        if seen.compares_siblings and seen.group_size < siblings
        else ""
    )
    hotter = "" if seen.invalid_turns > _INVALID else "; a higher rollout.temperature explores more"
    return Advice(
        subject="too_hard",
        text=f"Success is {p:.3f}: {waste}. Take an easier level (env.params) or {learn_first}{more}{helped}{hotter}.",
    )


def _too_easy(seen: Preflight) -> Advice:
    return Advice(
        subject="too_easy",
        text=f"Success is {seen.success.value:.3f}: in {seen.all_one.value:.0%} of the groups everybody succeeds, and they carry no "
        "gradient. Take a harder level (env.params), or a higher rollout.temperature.",
    )


def _uneven(seen: Preflight) -> Advice:
    expected = informative(seen.success.value, seen.group_size)
    return Advice(
        subject="uneven",
        text=f"Only {seen.mixed.value:.0%} of the groups carry a gradient, although success is {seen.success.value:.3f}; were all tasks "
        f"equally hard, {expected:.0%} would. Tasks are solved always ({seen.all_one.value:.0%}) or never ({seen.all_zero.value:.0%}), so "
        "choose tasks between the two (env.params), let new tasks take the place of dead groups (dead_groups.resample_rounds=2), or raise "
        "rollout.temperature if the policy hardly varies.",
    )


def _good(seen: Preflight) -> Advice:
    if not seen.compares_siblings:
        text = f"Success is {seen.success.value:.3f}, and {seen.method} needs no comparison of siblings: every step has something to learn."
        return Advice(subject="groups", good=True, text=text)
    alive = seen.mixed.value * seen.groups_per_step
    text = f"{seen.mixed.value:.0%} of the groups carry a gradient, {alive:.3g} of the {seen.groups_per_step} of a step: go ahead."
    return Advice(subject="groups", good=True, text=text)


def _precision(seen: Preflight) -> Advice | None:
    if not seen.compares_siblings or not seen.mixed.low < _FEW < seen.mixed.high:
        return None
    return Advice(
        subject="precision",
        text=f"With {seen.groups} tasks the share of groups with a gradient is only known to be in [{seen.mixed.low:.2f}, "
        f"{seen.mixed.high:.2f}]; --tasks {4 * seen.groups} halves that.",
    )
