"""Properties of credit, of 1/Z and of the split into micro-batches, and the answers to bad input."""

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import InputError
from learner.batch import optimizer_steps
from learner.credit import BaselineState, credit, initial_baseline
from learner.normalise import inverse_z
from rollout.types import Group
from tests.learner.builders import VOCABULARY, learner_gradient, micro_batches, one_turn_group, plan_of, ragged_groups, trajectory

GROUP_METHODS = ("rloo", "alive_loo", "grpo_simple", "grpo", "dr_grpo")
REWARDS = st.lists(st.floats(-100, 100).map(lambda value: round(value, 3)), min_size=2, max_size=8)
ANY_REWARD = st.floats(allow_nan=False, allow_infinity=False)


def _first(rewards: list[float], method: str, **overrides: object) -> np.ndarray:
    plan = plan_of(method, **overrides)
    return np.array([values[0] for values in credit([one_turn_group(rewards)], plan, initial_baseline(plan))])


@given(rewards=REWARDS, shift=st.floats(-100, 100), method=st.sampled_from(GROUP_METHODS))
def test_a_reward_that_everybody_gets_changes_nothing(rewards: list[float], shift: float, method: str) -> None:
    shifted = [reward + shift for reward in rewards]
    np.testing.assert_allclose(_first(shifted, method), _first(rewards, method), rtol=0, atol=1e-7)


@given(rewards=REWARDS, factor=st.floats(0.01, 100), method=st.sampled_from(GROUP_METHODS), std=st.sampled_from(["population", "sample"]))
def test_scaled_rewards_scale_credit_unless_it_is_standardised(rewards: list[float], factor: float, method: str, std: str) -> None:
    scaled = _first([reward * factor for reward in rewards], method, std=std)
    before = _first(rewards, method, std=std)
    np.testing.assert_allclose(scaled, before if method.startswith("grpo") else factor * before, rtol=1e-9, atol=1e-9)


@given(data=st.data(), rewards=REWARDS, method=st.sampled_from(GROUP_METHODS))
def test_the_order_of_siblings_does_not_matter(data: st.DataObject, rewards: list[float], method: str) -> None:
    order = data.draw(st.permutations(range(len(rewards))))
    permuted = _first([rewards[number] for number in order], method)
    np.testing.assert_allclose(permuted, _first(rewards, method)[order], rtol=1e-9, atol=1e-9)


@given(reward=ANY_REWARD, size=st.integers(2, 9), method=st.sampled_from(GROUP_METHODS))
def test_equal_rewards_give_exactly_zero(reward: float, size: int, method: str) -> None:
    assert (_first([reward] * size, method) == 0).all()


@pytest.mark.parametrize("method", GROUP_METHODS)
def test_eight_rewards_of_seven_tenths_have_no_signal(method: str) -> None:
    """In float32 the mean of eight 0.7 is not 0.7, and the difference over its own std is an advantage of about one."""
    assert (_first([0.7] * 8, method) == 0).all()


@given(rewards=st.lists(st.integers(-3, 3), min_size=2, max_size=8), tiny=st.integers(0, 300))
def test_standardised_credit_has_unit_spread_however_small_the_rewards_are(rewards: list[int], tiny: int) -> None:
    values = [reward * 10.0**-tiny for reward in rewards]
    if max(values) > min(values):
        assert np.std(_first(values, "grpo_simple")) == pytest.approx(1, abs=1e-9)
        assert np.std(_first(values, "grpo_simple", std="sample"), ddof=1) == pytest.approx(1, abs=1e-9)


def test_alive_baseline_compares_with_the_siblings_that_still_play() -> None:
    """Rewards a turn: (0, 1), (.5), (0, 0, 1). To go: (1, 1), (.5), (1, 1, 1).

    Turn 0: others' means .75, 1, .75 -> .25, -.5, .25. Turn 1: members 0 and 2 have 1 and 1 -> 0, 0. Turn 2: member 2 alone -> 1.
    """
    rewards = [[0.0, 1.0], [0.5], [0.0, 0.0, 1.0]]
    group = Group(trajectories=tuple(trajectory([[1]] * len(r), r, member=m) for m, r in enumerate(rewards)))
    plan = plan_of("alive_loo")
    found = [values.tolist() for values in credit([group], plan, initial_baseline(plan))]
    assert found == [pytest.approx([0.25, 0.0]), pytest.approx([-0.5]), pytest.approx([0.25, 0.0, 1.0])]


@pytest.mark.parametrize("method", GROUP_METHODS)
def test_a_group_of_one_is_refused_by_name(method: str) -> None:
    plan = plan_of(method)
    with pytest.raises(InputError, match=r"task toy/3, group 3, member 0: baseline .* one member; expected two or more"):
        credit([one_turn_group([1.0], group=3)], plan, initial_baseline(plan))


def test_credit_that_overflows_is_refused_by_name() -> None:
    plan = plan_of("dr_grpo")
    groups = [one_turn_group([1.0, 0.0]), one_turn_group([1e308, -1e308, 1e308, 1e308], group=5)]
    with pytest.raises(InputError, match=r"task toy/5, group 5, member \d: credit .* not finite"):
        credit(groups, plan, initial_baseline(plan))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", True])
def test_a_reward_that_is_no_number_is_refused_by_name(bad: object) -> None:
    with pytest.raises(InputError, match="task toy/2, group 2, member 1: the reward of turn 0"):
        trajectory([[1]], [bad], group=2, member=1)


def test_turns_out_of_order_or_with_other_log_probs_are_refused_by_name() -> None:
    """Credit is laid on the mask in the order of the turns, so a swapped pair would pay the wrong action."""
    good = trajectory([[1, 2], [3, 4]], [0.0, 1.0], group=2, member=1)
    with pytest.raises(InputError, match="task toy/2, group 2, member 1: turn 1 is not where it says"):
        replace(good, turns=good.turns[::-1])
    with pytest.raises(InputError, match="task toy/2, group 2, member 1: the log-probs of turn 0 are not those"):
        replace(good, logp_old=tuple(0.0 for _ in good.logp_old))


def _tables() -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(2, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(5), dtype=torch.float64))


NEW, OLD = _tables()
SPLIT_GROUPS = ragged_groups(7, old_VV=OLD)


@settings(deadline=None, max_examples=40)
@given(ranks=st.integers(1, 5), budget=st.integers(1, 400), method=st.sampled_from(["dr_grpo", "grpo", "alive_loo", "sft"]))
def test_no_split_changes_the_gradient(ranks: int, budget: int, method: str) -> None:
    plan = plan_of(method)
    ref = OLD if plan.kl_coef > 0 else None
    whole = learner_gradient(SPLIT_GROUPS, plan, NEW, ref_VV=ref)
    torch.testing.assert_close(learner_gradient(SPLIT_GROUPS, plan, NEW, ref_VV=ref, ranks=ranks, budget=budget), whole, rtol=0, atol=1e-13)


@settings(deadline=None, max_examples=40)
@given(ranks=st.integers(1, 5), budget=st.integers(1, 400))
def test_every_row_is_on_one_rank_and_ranks_have_as_many_micro_batches(ranks: int, budget: int) -> None:
    plan = plan_of("sft")
    (step,), _, _ = optimizer_steps(
        SPLIT_GROUPS,
        plan,
        ranks=ranks,
        micro_batch_tokens=budget,
        generation_limit=12,
        baseline_state=initial_baseline(plan),
        current_version=0,
    )
    assert len(step.micro_batches) == ranks
    assert len({len(parts) for parts in step.micro_batches}) == 1
    parts = [part for parts in step.micro_batches for part in parts]
    rows = [part for part in parts if part.inverse_z_BT.any()]
    assert all(part.token_ids_BT.numel() <= budget or part.token_ids_BT.shape[0] == 1 for part in rows)
    seen = sorted(tuple(ids[mask].tolist()) for part in rows for ids, mask in zip(part.token_ids_BT, part.mask_BT, strict=True))
    episodes = [episode for group in SPLIT_GROUPS for episode in group.trajectories]
    sampled = [tuple(token for turn in episode.turns for token in turn.token_ids) for episode in episodes]
    assert seen == sorted(sampled)
    real, laid = sum(len(episode.token_ids) for episode in episodes), sum(part.token_ids_BT.numel() for part in rows)
    assert step.padding_fraction == pytest.approx(1 - real / laid)


@pytest.mark.parametrize("normaliser", ["constant", "token", "own_length", "group"])
def test_groups_that_do_not_count_are_as_if_they_were_not_there(normaliser: str) -> None:
    plan = plan_of("dr_grpo", normaliser=normaliser, count_dead_groups=False)
    without = inverse_z(SPLIT_GROUPS[:-1], plan, 12)
    assert SPLIT_GROUPS[-1].dead and not any(group.dead for group in SPLIT_GROUPS[:-1])
    assert inverse_z(SPLIT_GROUPS, plan, 12) == [*without, 0.0, 0.0, 0.0, 0.0]
    counted = inverse_z(SPLIT_GROUPS, plan_of("dr_grpo", normaliser=normaliser), 12)
    assert all(more > less for more, less in zip(without, counted, strict=False))


def test_a_batch_without_a_signal_is_a_step_with_a_gradient_of_zero() -> None:
    dead = [one_turn_group([0.7] * 4)]
    for plan in (plan_of("dr_grpo"), plan_of("dr_grpo", count_dead_groups=False)):
        assert (learner_gradient(dead, plan, NEW, ranks=2) == 0).all()


def _steps(groups: list[Group], method: str = "dr_grpo", **arguments: int) -> list:
    plan = plan_of(method)
    common = {"ranks": 1, "micro_batch_tokens": 999, "generation_limit": 12, "current_version": 0, **arguments}
    return optimizer_steps(groups, plan, baseline_state=initial_baseline(plan), **common)[0]


def test_only_tokens_of_the_current_weights_in_the_first_step_are_on_policy() -> None:
    groups = [
        *ragged_groups(1, old_VV=OLD, groups=2, version=4)[:1],
        *ragged_groups(2, old_VV=OLD, groups=2, version=3)[:1],
    ]
    first, second = _steps(groups, "rloo", minibatches=2, current_version=4)
    assert all(torch.equal(part.on_policy_BT, part.mask_BT) and part.mask_BT.any() for part in first.micro_batches[0])
    assert not any(part.on_policy_BT.any() for part in second.micro_batches[0])
    later = _steps(groups[:1], "rloo", epochs=2, current_version=4)[1]
    for part, fresh in zip(later.micro_batches[0], first.micro_batches[0], strict=True):
        assert torch.equal(part.credit_BT, fresh.credit_BT)
        assert not part.on_policy_BT.any()


def test_minibatches_are_whole_groups_in_order_each_with_its_own_z() -> None:
    steps = _steps(SPLIT_GROUPS, "sft", minibatches=2)
    for step, part in zip(steps, (SPLIT_GROUPS[:2], SPLIT_GROUPS[2:]), strict=True):
        for found, expected in zip(step.micro_batches[0], micro_batches(part, plan_of("sft")), strict=True):
            assert torch.equal(found.token_ids_BT, expected.token_ids_BT)
            assert torch.equal(found.inverse_z_BT, expected.inverse_z_BT)


@pytest.mark.parametrize(("count", "minibatches", "sizes"), [(3, 2, [1, 2]), (2, 4, [1, 1]), (4, 3, [1, 1, 2])])
def test_groups_that_do_not_divide_make_parts_that_differ_by_one(count: int, minibatches: int, sizes: list[int]) -> None:
    groups = SPLIT_GROUPS[:count]
    steps = _steps(groups, "sft", minibatches=minibatches)
    rows = [sum(part.token_ids_BT.shape[0] for part in step.micro_batches[0]) for step in steps]
    bounds = list(accumulate(sizes, initial=0))
    assert rows == [sum(len(group.trajectories) for group in groups[first:end]) for first, end in pairwise(bounds)]


def test_a_batch_without_groups_is_refused() -> None:
    with pytest.raises(InputError, match="no groups to learn from"):
        _steps([])


def test_moving_average_scores_a_batch_before_it_learns_from_it() -> None:
    """Start .5, decay .9: the first batch is scored with .5; after its mean of 1.0 the baseline is .9 * .5 + .1 * 1 = .55."""
    plan, groups = plan_of("reinforce", baseline="moving_average"), [one_turn_group([1.0, 1.0])]
    state, seen = initial_baseline(plan), []
    for _ in range(2):
        (step,), state, _ = optimizer_steps(
            groups, plan, ranks=1, micro_batch_tokens=99, generation_limit=2, baseline_state=state, current_version=0
        )
        part = step.micro_batches[0][0]
        seen.append(part.credit_BT[part.mask_BT].unique().item())
    assert seen == pytest.approx([0.5, 0.45])
    assert state == BaselineState(value=pytest.approx(0.9 * 0.55 + 0.1))


def test_credit_from_elsewhere_takes_the_place_of_the_rows_own() -> None:
    """One value a sampled token, in the order of the groups: it lands on these tokens and nowhere else."""
    groups, plan = SPLIT_GROUPS[:1], plan_of("reinforce")
    mine = [np.arange(1.0, 1 + episode.sampled_tokens) for episode in groups[0].trajectories]
    (step,), _, _ = optimizer_steps(
        groups,
        plan,
        ranks=1,
        micro_batch_tokens=999,
        generation_limit=12,
        baseline_state=initial_baseline(plan),
        current_version=0,
        credit_override=mine,
    )
    part = step.micro_batches[0][0]
    for ids, mask, row in zip(part.token_ids_BT, part.mask_BT, part.credit_BT, strict=True):
        assert row[mask].tolist() == list(range(1, int(mask.sum()) + 1))
        assert not row[~mask].any()
        assert any(tuple(ids[: len(episode.token_ids)].tolist()) == episode.token_ids for episode in groups[0].trajectories)
