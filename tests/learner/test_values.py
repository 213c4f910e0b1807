"""Returns over sampled tokens: GAE computed twice, observations that change nothing, whitening, what is missing, how rows are dealt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.errors import InputError
from learner.batch import optimizer_steps
from learner.credit import credit, initial_baseline
from learner.gae import gae
from learner.types import FloatArray, Judgement
from rollout.types import Group
from tests.learner.builders import one_turn_group, plan_of, trajectory

NUMBERS = st.floats(-10, 10)
TURNS = st.lists(st.tuples(st.integers(1, 4), st.floats(-2, 2), st.integers(0, 3)), min_size=1, max_size=5)


def _explicit(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    after = [*values[1:], 0.0]
    deltas = [r + gamma * later - v for r, v, later in zip(rewards, values, after, strict=True)]
    return [sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


@given(steps=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20), gamma=st.floats(0.01, 1), lam=st.floats(0, 1))
def test_the_recursion_is_the_sum(steps: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = (list(column) for column in zip(*steps, strict=True))
    found = gae(np.array(rewards), np.array(values), gamma=gamma, lam=lam)
    np.testing.assert_allclose(found, _explicit(rewards, values, gamma, lam), rtol=0, atol=1e-9)


@given(turns=TURNS, data=st.data(), gamma=st.floats(0.1, 1), lam=st.floats(0, 1))
def test_advantages_carry_across_observations(turns: list, data: st.DataObject, gamma: float, lam: float) -> None:
    """A turn's reward arrives at its last token, the next state is the next SAMPLED token's: observations are as if absent."""
    actions, rewards = [[1] * length for length, _, _ in turns], [reward for _, reward, _ in turns]
    values = data.draw(st.lists(NUMBERS, min_size=sum(map(len, actions)), max_size=sum(map(len, actions))))
    plan = plan_of("ppo", gamma=gamma, gae_lambda=lam)
    judged = [Judgement(values_T=np.array(values))]
    at_token = [reward if t == length - 1 else 0.0 for length, reward, _ in turns for t in range(length)]
    for observations in ([(8,) * size for _, _, size in turns], [()] * len(turns)):
        group = Group(trajectories=(trajectory(actions, rewards, observations=observations),))
        (credit_T,) = credit([group], plan, initial_baseline(plan), judged)
        np.testing.assert_allclose(credit_T, _explicit(at_token, values, gamma, lam), rtol=0, atol=1e-9)


def test_advantages_of_two_turns_by_hand() -> None:
    """Rewards 0 | 1, V = .5 .4 | .8, gamma 1, lambda .5: deltas -.1, .4, .2; A3 = .2, A2 = .4 + .1 = .5, A1 = -.1 + .25 = .15."""
    group = Group(trajectories=(trajectory([[1, 2], [3]], [0.0, 1.0]),))
    plan = plan_of("ppo", gae_lambda=0.5)
    (found,) = credit([group], plan, initial_baseline(plan), [Judgement(values_T=np.array([0.5, 0.4, 0.8]))])
    assert found.tolist() == pytest.approx([0.15, 0.5, 0.2], abs=1e-12)


def _judged(groups: list[Group]) -> list[Judgement]:
    episodes = [episode for group in groups for episode in group.trajectories]
    return [Judgement(values_T=np.cos(np.arange(episode.sampled_tokens) + number)) for number, episode in enumerate(episodes)]


def test_whitening_is_over_the_tokens_of_the_batch_and_keeps_their_order() -> None:
    groups = [one_turn_group([1.0, 0.0]), one_turn_group([0.0, 0.5, 0.25], group=1, tokens=3)]
    plain, white = (
        np.concatenate(credit(groups, plan, initial_baseline(plan), _judged(groups)))
        for plan in (plan_of("ppo"), plan_of("ppo", whiten=True))
    )
    assert (white.mean(), white.std()) == pytest.approx((0, 1), abs=1e-12)
    np.testing.assert_allclose(white * plain.std() + plain.mean(), plain, rtol=0, atol=1e-12)


def test_whitened_credit_without_a_signal_is_exactly_zero() -> None:
    """Every advantage is .7 - .7 * .1 or so: equal, and rounding noise must not become advantages of one."""
    plan, groups = plan_of("actor_critic", whiten=True), [one_turn_group([0.7] * 8)]
    found = credit(groups, plan, initial_baseline(plan), [Judgement(values_T=np.full(2, 0.1)) for _ in range(8)])
    assert not np.concatenate(found).any()


def _steps(plan, groups: list[Group], judged: list[Judgement] | None):
    return optimizer_steps(
        groups,
        plan,
        ranks=1,
        micro_batch_tokens=999,
        generation_limit=4,
        baseline_state=initial_baseline(plan),
        current_version=0,
        judged=judged,
    )


def test_targets_lie_on_the_sampled_tokens_and_a_row_without_credit_still_trains_its_value() -> None:
    """R = 1 on every token of both turns; V says 1 everywhere, so that credit is 0 and the explained variance has no meaning."""
    groups, plan = [Group(trajectories=(trajectory([[1, 2], [3]], [0.0, 1.0]),))], plan_of("actor_critic")
    (step,), _, metrics = _steps(plan, groups, [Judgement(values_T=np.ones(3))])
    ((part,),) = step.micro_batches
    assert part.value_target_BT is not None and part.value_old_BT is not None
    assert part.value_target_BT.tolist() == [[0, 0, 0, 1, 1, 0, 0, 1]] == part.value_old_BT.tolist()
    assert not part.credit_BT.any()
    assert "value/explained_variance" not in metrics


def test_explained_variance_by_hand() -> None:
    """Targets 1 1 0 0, variance .25. V = .75 .75 .25 .25: errors .25 .25 -.25 -.25, variance .0625; 1 - .0625 / .25 = .75."""
    groups = [one_turn_group([1.0, 0.0])]
    judged = [Judgement(values_T=np.full(2, 0.75)), Judgement(values_T=np.full(2, 0.25))]
    _, _, metrics = _steps(plan_of("actor_critic"), groups, judged)
    assert metrics["value/explained_variance"].value == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        (plan_of("actor_critic"), "values"),
        (plan_of("ppo"), "values"),
        (plan_of("rloo", kl_coef=0.1, kl_in="reward"), "reference log-probs"),
    ],
)
@pytest.mark.parametrize("judged", [None, [Judgement(), Judgement()]])
def test_a_missing_judgement_is_refused_by_name(plan, what: str, judged: list[Judgement] | None) -> None:
    assert plan.needs_judgement
    with pytest.raises(InputError, match=rf"task toy/3, group 3, member 0 has no {what}.*ask Learner.judge"):
        _steps(plan, [one_turn_group([1.0, 0.0], group=3)], judged)


def test_kept_fraction_and_a_batch_without_a_success() -> None:
    plan = plan_of("expert_iteration", filter_threshold=0.5)
    _, _, metrics = _steps(plan, [one_turn_group([1.0, 0.0, 0.5, 0.25])], None)
    assert metrics["batch/kept_fraction"].value == 0.5
    (step,), _, metrics = _steps(plan, [one_turn_group([0.0, 0.25])], None)
    ((part,),) = step.micro_batches
    assert metrics["batch/trained_fraction"].value == 0 and not part.inverse_z_BT.any()


def test_reward_and_value_lengths_must_agree() -> None:
    plan, values_T = plan_of("ppo"), np.zeros(5)
    wrong: list[FloatArray] = [values_T, values_T]
    with pytest.raises(AssertionError, match="of which there are 2"):
        _steps(plan, [one_turn_group([1.0, 0.0])], [Judgement(values_T=one) for one in wrong])
