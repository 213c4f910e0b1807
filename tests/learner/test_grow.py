"""Rounds: what the data set holds, what an improve phase goes over, and that it is the textbook's likelihood gradient."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envs.contract import End
from learner.config import GrowConfig
from learner.grow import added, kept, learned_from, raised, shuffled_batches
from rollout.types import Group, Trajectory
from tests.learner.builders import VOCABULARY, bigram_logps, learner_gradient, one_turn_group, plan_of, ragged_groups

REWARDS = st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=4), min_size=1, max_size=6)


def solved_if_paid(group: Group) -> Group:
    members = tuple(replace(t, end=End.SOLVED) if t.turns[-1].reward == 1 else t for t in group.trajectories)
    return Group(trajectories=members)


def rewards_of(groups: list[Group] | tuple[Group, ...]) -> list[float]:
    return [reward for group in groups for reward in group.rewards]


@given(rounds=st.lists(REWARDS, min_size=1, max_size=3), most=st.one_of(st.none(), st.integers(1, 8)))
def test_the_data_set_is_every_episode_that_passed_in_order_and_the_oldest_leave(rounds: list[list[list[float]]], most: int | None) -> None:
    plan, data, passed = plan_of("rest", filter_threshold=0.5), (), []
    for rewards in rounds:
        groups = [one_turn_group(members, group=number) for number, members in enumerate(rewards)]
        data = added(data, kept(groups, plan), GrowConfig(max_episodes=most))
        passed += [reward for reward in rewards_of(groups) if reward >= 0.5]
    assert rewards_of(data) == passed[-most if most else 0 :]


@given(rewards=REWARDS, most=st.one_of(st.none(), st.integers(1, 3)))
def test_every_pass_is_stricter_and_takes_the_newest_of_each_task(rewards: list[list[float]], most: int | None) -> None:
    grow = GrowConfig(raise_to=(0.5, 1.0), max_per_task=most)
    first = plan_of("rest", filter_threshold=0.25)
    data = added((), kept([one_turn_group(members, group=number % 2) for number, members in enumerate(rewards)], first), grow)
    plans = raised(first, grow)
    assert [plan.config.filter_threshold for plan in plans] == [0.25, 0.5, 1.0]
    for plan in plans:
        passed = [one for one in data if one.rewards[0] >= plan.config.filter_threshold]
        chosen = learned_from(data, plan, grow)
        for task in {one.task.id for one in passed}:
            of_task = [one for one in passed if one.task.id == task]
            assert [one for one in chosen if one.task.id == task] == of_task[-most if most else 0 :]
        assert [id(one) for one in data if any(one is two for two in chosen)] == [id(one) for one in chosen], "in the order they came"


@given(count=st.integers(0, 40), epochs=st.integers(1, 3), size=st.integers(1, 12), seed=st.integers(0, 9))
def test_batches_hold_everything_once_an_epoch(count: int, epochs: int, size: int, seed: int) -> None:
    groups = [one_turn_group([1.0], group=number) for number in range(count)]
    batches = shuffled_batches(groups, epochs=epochs, size=size, seed=seed)
    assert Counter(one.task.id for batch in batches for one in batch) == Counter({one.task.id: epochs for one in groups})
    assert all(1 <= len(batch) <= size for batch in batches)
    assert batches == shuffled_batches(groups, epochs=epochs, size=size, seed=seed)


@pytest.mark.parametrize(("method", "pays"), [("rest", lambda t: t.reward >= 0.5), ("rest_em", lambda t: t.solved)])
def test_an_improve_step_is_the_mean_log_likelihood_of_what_was_kept(method: str, pays: Callable[[Trajectory], bool]) -> None:
    """autograd of `mean_kept_tokens log pi` on the same episodes; whoever sampled them does not enter."""
    plan = plan_of(method, **({"filter_threshold": 0.5} if method == "rest" else {}))
    draw = torch.Generator().manual_seed(0)
    logits_VV = torch.randn(VOCABULARY, VOCABULARY, generator=draw, dtype=torch.float64)
    groups = ragged_groups(3, old_VV=torch.randn(VOCABULARY, VOCABULARY, generator=draw, dtype=torch.float64))
    if method == "rest_em":
        groups = [solved_if_paid(group) for group in groups]
    data = kept(groups, plan)
    assert 0 < len(data) < sum(len(group.trajectories) for group in groups)
    leaf_VV = logits_VV.clone().requires_grad_()
    picked = [t for group in groups for t in group.trajectories if pays(t)]
    (-torch.cat([bigram_logps(leaf_VV, t) for t in picked]).mean()).backward()
    torch.testing.assert_close(learner_gradient(data, plan, logits_VV), leaf_VV.grad, rtol=0, atol=1e-12)
