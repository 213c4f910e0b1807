"""Exact enumeration of the rows with a learned value, a filter or a KL in the reward. Nothing here is sampled."""

import pytest
import torch

from learner.enumerate import Actions, Toy, exact_gradient, expected_gradient, expected_return, group_weights, state_values
from rollout.types import Group
from tests.learner.builders import plan_of, trajectory
from tests.learner.test_unbiased import FIXED, GRADED, TOYS, WITH_END

VALUE_ROWS = {
    "reinforce": plan_of("reinforce", baseline="value"),
    "reinforce_to_go": plan_of("reinforce_to_go", baseline="value"),
    "actor_critic": plan_of("actor_critic"),
    "ppo, lambda 1": plan_of("ppo", gae_lambda=1.0, normaliser="constant"),
}


def _random_values(toy: Toy) -> dict[Actions, float]:
    """A V that is wrong everywhere; any function of the history is a legal baseline."""
    draw = torch.randn(len(toy.histories()), generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return dict(zip(toy.histories(), draw.tolist(), strict=True))


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
@pytest.mark.parametrize("name", VALUE_ROWS)
def test_any_value_is_an_unbiased_baseline(name: str, toy: Toy) -> None:
    for values in (_random_values(toy), state_values(toy)):
        estimate = expected_gradient(toy, VALUE_ROWS[name], group_size=2, values=values)
        torch.testing.assert_close(estimate.mean_P, exact_gradient(toy), rtol=0, atol=1e-10)


def test_the_true_value_has_less_variance_than_no_baseline_and_a_wrong_one_has_more() -> None:
    none = expected_gradient(GRADED, plan_of("reinforce_to_go"), group_size=2).variance
    true = expected_gradient(GRADED, plan_of("actor_critic"), group_size=2).variance
    wrong = expected_gradient(GRADED, plan_of("actor_critic"), group_size=2, values=_random_values(GRADED)).variance
    assert true < none < wrong


@pytest.mark.parametrize("toy", [FIXED, GRADED], ids=["fixed", "graded"])
def test_ppo_with_lambda_one_is_grad_j_up_to_its_z(toy: Toy) -> None:
    """Two tokens an episode: the token mean is half of the mean over episodes."""
    estimate = expected_gradient(toy, plan_of("ppo", gae_lambda=1.0), group_size=3, values=_random_values(toy))
    torch.testing.assert_close(estimate.mean_P, exact_gradient(toy) / 2, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_lambda_below_one_is_right_exactly_if_the_value_is(lam: float, toy: Toy) -> None:
    plan = plan_of("ppo", gae_lambda=lam, normaliser="constant")
    gradient_P = exact_gradient(toy)
    torch.testing.assert_close(expected_gradient(toy, plan, group_size=2).mean_P, gradient_P, rtol=0, atol=1e-10)
    wrong = expected_gradient(toy, plan, group_size=2, values=_random_values(toy)).multiple_of(gradient_P)
    assert abs(wrong[0] - 1) > 1e-3 or wrong[1] > 1e-3


@pytest.mark.parametrize("switch", [{"gamma": 0.8}, {"whiten": True}])
def test_discount_and_whitening_change_the_gradient(switch: dict[str, object]) -> None:
    plan = plan_of("ppo", gae_lambda=1.0, normaliser="constant", **switch)
    _, residual = expected_gradient(GRADED, plan, group_size=3).multiple_of(exact_gradient(GRADED))
    assert residual > 1e-3
    assert any(word in " ".join(plan.biased_by) for word in switch) or "whitening" in " ".join(plan.biased_by)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_kept_tokens_divide_by_the_success_rate(size: int) -> None:
    """Given k kept episodes, the mean over their 2k tokens is E[score | success] / 2 = grad J / 2p; k > 0 in 1 - (1 - p)^G."""
    p = float(expected_return(FIXED, FIXED.logits_SV))
    multiple, residual = expected_gradient(FIXED, plan_of("rest_em"), group_size=size).multiple_of(exact_gradient(FIXED))
    assert multiple == pytest.approx((1 - (1 - p) ** size) / (2 * p), abs=1e-10)
    assert residual < 1e-10


@pytest.mark.parametrize("method", ["rest_em", "rest", "expert_iteration"])
def test_a_success_filter_over_a_constant_is_reinforce(method: str) -> None:
    estimate = expected_gradient(FIXED, plan_of(method, normaliser="constant"), group_size=3)
    torch.testing.assert_close(estimate.mean_P, exact_gradient(FIXED), rtol=0, atol=1e-10)
    turned = expected_gradient(WITH_END, plan_of(method), group_size=3).multiple_of(exact_gradient(WITH_END))
    assert turned[1] > 1e-3, "with lengths that differ the kept tokens turn the gradient"


@pytest.mark.parametrize("threshold", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("method", ["expert_iteration", "rest"])
def test_a_threshold_climbs_the_probability_of_passing_it(method: str, threshold: float) -> None:
    logits_SV = GRADED.logits_SV.clone().requires_grad_()
    passing = [path for path in GRADED.paths() if sum(GRADED.returns(path)) >= threshold]
    assert 0 < len(passing) < len(GRADED.paths())
    probability = torch.stack([GRADED.log_probs(path, logits_SV).sum().exp() for path in passing]).sum()
    (gradient_SV,) = torch.autograd.grad(probability, logits_SV)
    plan = plan_of(method, normaliser="constant", filter_threshold=threshold)
    torch.testing.assert_close(expected_gradient(GRADED, plan, group_size=2).mean_P, gradient_SV.flatten(), rtol=0, atol=1e-10)
    assert (gradient_SV.flatten() - exact_gradient(GRADED)).norm() > 1e-2, "and that is not grad J"


def _penalised_gradient(toy: Toy, coef: float, ref_logits_SV: torch.Tensor) -> torch.Tensor:
    """grad of J - coef * KL(pi || ref) between the distributions of whole episodes."""
    logits_SV = toy.logits_SV.clone().requires_grad_()
    logps = [(toy.log_probs(path, logits_SV).sum(), toy.log_probs(path, ref_logits_SV).sum()) for path in toy.paths()]
    kl = torch.stack([logp.exp() * (logp - ref) for logp, ref in logps]).sum()
    (gradient_SV,) = torch.autograd.grad(expected_return(toy, logits_SV) - coef * kl, logits_SV)
    return gradient_SV.flatten()


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
@pytest.mark.parametrize("method", ["reinforce", "reinforce_to_go", "rloo", "actor_critic"])
def test_k1_in_the_reward_has_the_gradient_of_the_kl_and_k3_has_not(method: str, toy: Toy) -> None:
    ref = toy.logits_SV + torch.randn(toy.logits_SV.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected_P = _penalised_gradient(toy, 0.3, ref)
    found = {}
    for estimator in ("k1", "k3"):
        plan = plan_of(method, kl_coef=0.3, kl_in="reward", kl_estimator=estimator)
        found[estimator] = expected_gradient(toy, plan, group_size=2, ref_logits_SV=ref).mean_P
    torch.testing.assert_close(found["k1"], expected_P, rtol=0, atol=1e-10)
    assert (found["k3"] - expected_P).norm() > 1e-3


@pytest.mark.parametrize("drift", ["ppo_clip", "tis", "masked", "sequence", "cispo"])
def test_every_drift_is_one_on_samples_of_the_current_weights(drift: str) -> None:
    paths = [(0, 1), (2,), (1, 0)]
    group = Group(trajectories=tuple(trajectory([[a] for a in p], WITH_END.returns(p), member=m, prompt=(3,)) for m, p in enumerate(paths)))
    logp_M = torch.cat([WITH_END.log_probs(path, WITH_END.logits_SV) for path in paths])
    plain = group_weights(group, plan_of("rloo"), logp_M, 2)
    assert plain.abs().max() > 0
    torch.testing.assert_close(group_weights(group, plan_of("rloo", drift=drift), logp_M, 2), plain, rtol=0, atol=0)
