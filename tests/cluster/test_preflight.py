"""A preflight counts what it says, and its advice follows from its numbers."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.checks.preflight import Estimate, Preflight, measure
from cluster.checks.preflight_advice import advise, informative, rare
from cluster.checks.preflight_view import binned
from cluster.config import RunConfig
from cluster.load_config import load_config
from cluster.scores import wilson
from envs.contract import End
from rollout.types import Group, Trajectory
from tests.cluster.episodes import trajectory
from tests.cluster.test_scores import group


def config(size: int, *overrides: str) -> RunConfig:
    return load_config("number-search-tiny", [f"rollout.group_size={size}", *overrides])


def cut(episode: Trajectory, tokens: int) -> Trajectory:
    """The episode with its last turn cut off after so many tokens, before the environment saw it."""
    *turns, last = episode.turns
    end = last.start + tokens
    turn = replace(last, token_ids=last.token_ids[:tokens], logp_old=last.logp_old[:tokens], observation="", reward=0.0, valid=False)
    return replace(
        episode,
        turns=(*turns, turn),
        token_ids=episode.token_ids[:end],
        action_mask=episode.action_mask[:end],
        logp_old=episode.logp_old[:end],
        end=End.OUT_OF_TOKENS,
    )


def test_groups_are_counted_by_their_successes() -> None:
    groups = [group(0, [True, True]), group(1, [True, False]), group(2, [False, False]), group(3, [False, False])]
    seen = measure(groups, config(2), failed=1)
    assert seen.histogram == (2, 1, 1) and seen.groups == 4 and seen.failed == 1
    assert (seen.success.value, seen.all_zero.value, seen.all_one.value, seen.mixed.value) == (3 / 8, 2 / 4, 1 / 4, 1 / 4)
    assert (seen.mixed.low, seen.mixed.high) == wilson(1 / 4, 4)
    # Each invented episode has two turns of two tokens, of which the second is no valid action, in 9 tokens.
    assert (seen.turns, seen.invalid_turns, seen.turn_tokens_median, seen.turn_tokens_p95, seen.longest_episode) == (2, 0.5, 2, 2, 9)
    assert seen.compares_siblings and seen.best_success == 0.9375
    assert not measure(groups, config(2, "algorithm.method=reinforce"), failed=0).compares_siblings


def test_unequal_rewards_of_failures_are_a_gradient_too() -> None:
    members = [replace(trajectory(group=0, member=member, reward=reward), end=End.FAILED) for member, reward in enumerate((0.5, 0.0))]
    seen = measure([Group(trajectories=tuple(members))], config(2), failed=0)
    assert seen.histogram == (1, 0, 0) and seen.mixed.value == 1.0 and seen.all_zero.value == 0.0


@pytest.mark.parametrize(("limit", "turns", "contexts"), [(1, 1 / 2, 0), (2, 0, 1 / 2)])
def test_a_cut_turn_is_no_invalid_turn_and_names_its_limit(limit: int, turns: float, contexts: float) -> None:
    whole, other = (trajectory(group=0, member=member, reward=0.0) for member in (0, 1))
    seen = measure([Group(trajectories=(whole, cut(other, 1)))], config(2, f"rollout.max_turn_tokens={limit}"), failed=0)
    assert (seen.cut_turns, seen.cut_contexts) == (turns, contexts)
    assert seen.invalid_turns == 1 / 4, "of four turns one is no action and another one was cut"


def numbers(p: float, mixed: float, size: int = 16, groups: int = 100, **changes: object) -> Preflight:
    """A preflight of groups with mean success `p`, of which the share `mixed` have unequal rewards."""

    def estimate(value: float) -> Estimate:
        low, high = wilson(value, groups)
        return Estimate(value=value, low=low, high=high)

    seen = Preflight(
        method="dr_grpo",
        compares_siblings=True,
        in_rounds=False,
        best_success=1.0,
        cold_started=False,
        group_size=size,
        groups_per_step=16,
        failed=0,
        histogram=(groups, *[0] * size),
        success=estimate(p),
        all_zero=estimate((1 - mixed) * (1 - p)),
        all_one=estimate((1 - mixed) * p),
        mixed=estimate(mixed),
        invalid_turns=0.0,
        cut_turns=0.0,
        cut_contexts=0.0,
        turns=4.0,
        turn_tokens_median=2.0,
        turn_tokens_p95=3.0,
        longest_episode=100,
        max_turn_tokens=6,
        max_context_tokens=128,
    )
    return replace(seen, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "subject", "words"),
    [
        (numbers(0.0, 0.0), "too_hard", "Not one of 1600 episodes succeeded, so success is below 0.0019"),
        (numbers(0.0, 0.0), "too_hard", "start from demonstrations (cold_start), take an easier level"),
        (numbers(0.0, 0.0, cold_started=True), "too_hard", "imitate more (cold_start.episodes"),
        # log(1/2) / log(1 - 0.02) = 34.3
        (numbers(0.02, 0.25), "too_hard", "raise rollout.group_size to 35"),
        (numbers(0.02, 0.25), "too_hard", "a higher rollout.temperature explores more"),
        (numbers(0.96, 0.4), "too_easy", "Take a harder level"),
        (numbers(0.93, 0.9, best_success=0.9375), "too_easy", "the best possible is 0.9375"),
        (numbers(0.4, 0.2), "uneven", "were all tasks equally hard, 100% would"),
        (numbers(0.5, 0.9), "groups", "14.4 of the 16 of a step"),
        (numbers(0.5, 0.2, compares_siblings=False, method="ppo"), "groups", "ppo needs no comparison of siblings"),
        (numbers(0.01, 0.1, compares_siblings=False, method="ppo"), "groups", "every step has something to learn"),
        (numbers(0.002, 0.1, compares_siblings=False), "too_hard", "of the groups contain no success. Take"),
        (numbers(0.5, 0.9, cut_turns=0.05), "turn_limit", "rollout.max_turn_tokens=6: more than half of all groups contain one"),
        (numbers(0.5, 0.9, cut_contexts=0.05), "context_limit", "rollout.max_context_tokens=128"),
        (numbers(0.5, 0.9, invalid_turns=0.2), "format", "start from demonstrations (cold_start.episodes=1000)"),
        (numbers(0.5, 0.9, failed=3), "environment", "failed in 3 of 103 groups"),
        (numbers(0.5, 0.52), "precision", "--tasks 400"),
    ],
)
def test_the_advice_follows_from_the_numbers(seen: Preflight, subject: str, words: str) -> None:
    found = {one.subject: one.text for one in advise(seen)}
    assert words in found[subject]


def test_nothing_is_advised_where_nothing_is_wrong() -> None:
    (only,) = advise(numbers(0.5, 0.9, cut_turns=0.04, cut_contexts=0.04, invalid_turns=0.1))
    assert only.good and only.subject == "groups"
    assert not any(one.good for one in advise(numbers(0.02, 0.2)))


def test_every_setting_that_an_advice_names_exists() -> None:
    wrong = {"invalid_turns": 0.2, "cut_turns": 0.5, "cut_contexts": 0.5}
    several = [numbers(p, 0.1, cold_started=cold, **wrong) for p in (0.0, 0.02, 0.4, 0.98) for cold in (True, False)]
    texts = " ".join(one.text for seen in several for one in advise(seen))
    keys = set(re.findall(r"\b(?:cold_start|rollout|dead_groups)\.\w+", texts))
    assert len(keys) >= 6
    tree = load_config("number-search-tiny").model_dump()
    assert [key for key in keys if key.partition(".")[2] not in tree[key.partition(".")[0]]] == []


@given(p=st.floats(0, 1), q=st.floats(0, 1), size=st.integers(1, 64))
def test_the_share_of_informative_groups_is_concave_in_success(p: float, q: float, size: int) -> None:
    assert informative((p + q) / 2, size) >= (informative(p, size) + informative(q, size)) / 2 - 1e-12
    # By definition half of the groups contain an event of this rate.
    assert 1 - (1 - rare(size)) ** size == pytest.approx(0.5)


@given(histogram=st.lists(st.integers(0, 9), min_size=2, max_size=80), most=st.integers(3, 20))
def test_a_shortened_histogram_keeps_every_group(histogram: list[int], most: int) -> None:
    rows = binned(histogram, most)
    assert len(rows) <= most
    assert sum(count for _, count in rows) == sum(histogram)
    assert (rows[0][1], rows[-1][1]) == (histogram[0], histogram[-1])
