"""Exact enumeration: the expected gradient of every method, through the code that trains, against grad J.

Nothing here is sampled. Multiples are stated for C = 1, so that the constant normaliser is a mean over episodes.
"""

import math

import numpy as np
import pytest
import torch

from learner.enumerate import Toy, exact_gradient, expected_gradient, expected_return, group_weights
from learner.loss import policy_loss
from learner.methods import METHODS
from learner.types import Judgement
from rollout.types import Group
from tests.learner.builders import plan_of, trajectory


def _logits(seed: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WINS = {(0, 1), (1, 0), (2, 0), (2, 2)}
# Binary: the last turn alone pays. Graded: the first turn pays too, so that reward-to-go differs from the episode's reward.
FIXED = Toy(name="fixed", logits_SV=_logits(1, 4), turns=2, reward=lambda past: float(past in WINS))
GRADED = Toy(name="graded", logits_SV=_logits(1, 4), turns=2, reward=lambda past: 0.5 * (past == (1,)) + float(past in WINS))
# Token 2 ends the episode: 7 episodes of one or two tokens, and the first turn pays when it goes on with token 1.
WITH_END = Toy(
    name="with_end",
    logits_SV=_logits(2, 3),
    turns=2,
    end_token=2,
    reward=lambda past: 0.25 * (past == (1,)) + float(past in {(2,), (0, 1), (1, 2)}),
)
TOYS = {toy.name: toy for toy in (FIXED, GRADED, WITH_END)}

UNBIASED = {
    "reinforce": plan_of("reinforce"),
    "reinforce, constant": plan_of("reinforce", baseline="constant", baseline_constant=0.3),
    "reinforce, moving average": plan_of("reinforce", baseline="moving_average", baseline_constant=0.7),
    "reinforce_to_go": plan_of("reinforce_to_go"),
    "reinforce_to_go, constant": plan_of("reinforce_to_go", baseline="constant", baseline_constant=0.3),
    "rloo": plan_of("rloo"),
    "alive_loo": plan_of("alive_loo"),
    "dr_grpo, leave one out": plan_of("dr_grpo", baseline="leave_one_out"),
}


def _bernoulli(p: float) -> Toy:
    """One step, two tokens, success with probability p: a group of G is its number of successes."""
    logits = torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)
    return Toy(name=f"bernoulli-{p}", logits_SV=logits, turns=1, reward=lambda past: float(past == (0,)))


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_exact_gradient_agrees_with_finite_differences(toy: Toy) -> None:
    gradient_P, step = exact_gradient(toy), 1e-5
    for index in range(toy.logits_SV.numel()):
        nudge = torch.zeros_like(toy.logits_SV)
        nudge.view(-1)[index] = step
        slope = (expected_return(toy, toy.logits_SV + nudge) - expected_return(toy, toy.logits_SV - nudge)) / (2 * step)
        assert float(slope) == pytest.approx(float(gradient_P[index]), abs=1e-9)
    total = sum(float(toy.log_probs(path, toy.logits_SV).sum().exp()) for path in toy.paths())
    assert total == pytest.approx(1, abs=1e-12), "the paths are not all there"


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
@pytest.mark.parametrize("name", UNBIASED)
def test_expected_gradient_is_grad_j(name: str, toy: Toy, size: int) -> None:
    estimate = expected_gradient(toy, UNBIASED[name], group_size=size)
    torch.testing.assert_close(estimate.mean_P, exact_gradient(toy), rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_group_mean_is_short_by_one_over_g(toy: Toy, size: int) -> None:
    estimate = expected_gradient(toy, plan_of("dr_grpo"), group_size=size)
    torch.testing.assert_close(estimate.mean_P, (1 - 1 / size) * exact_gradient(toy), rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["sft", "self_distill"])
def test_imitating_fresh_samples_of_equal_length_moves_nothing(method: str) -> None:
    assert expected_gradient(FIXED, plan_of(method), group_size=3).mean_P.abs().max() < 1e-12


@pytest.mark.parametrize(
    ("std", "p", "multiple"),
    [
        ("population", 0.5, 1.8557),
        ("population", 0.1, 2.3277),
        ("population", 0.9, 2.3277),
        ("population", 0.02, 2.5732),
        ("population", 0.98, 2.5732),
        ("sample", 0.5, 1.7358),
        ("sample", 0.1, 2.1774),
        ("sample", 0.02, 2.4070),
    ],
)
@pytest.mark.parametrize("method", ["grpo", "grpo_simple"])
def test_dividing_by_std_weights_a_task_by_its_difficulty(method: str, std: str, p: float, multiple: float) -> None:
    toy = _bernoulli(p)
    found, residual = expected_gradient(toy, plan_of(method, std=std), group_size=8).multiple_of(exact_gradient(toy))
    assert found == pytest.approx(multiple, abs=5e-5)
    assert residual < 1e-10


@pytest.mark.parametrize("p", [0.5, 0.1, 0.02])
def test_dr_grpo_weights_every_difficulty_alike(p: float) -> None:
    found, _ = expected_gradient(_bernoulli(p), plan_of("dr_grpo"), group_size=8).multiple_of(exact_gradient(_bernoulli(p)))
    assert found == pytest.approx(0.875, abs=1e-10)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_multiple_of_the_std_on_two_step_episodes_is_the_closed_form(size: int) -> None:
    """Sum over k successes in G of C(G,k) p^k (1-p)^(G-k) * (k (1-m)/p + (G-k) m/(1-p)) / (G s), m = k/G, s = sqrt(m (1-m))."""
    p = float(expected_return(FIXED, FIXED.logits_SV))
    closed = 0.0
    for k in range(1, size):
        m = k / size
        slope = k * (1 - m) / p + (size - k) * m / (1 - p)
        closed += math.comb(size, k) * p**k * (1 - p) ** (size - k) * slope / size / math.sqrt(m * (1 - m))
    found, residual = expected_gradient(FIXED, plan_of("grpo_simple"), group_size=size).multiple_of(exact_gradient(FIXED))
    assert found == pytest.approx(closed, abs=1e-10)
    assert residual < 1e-10


def test_std_turns_the_gradient_when_rewards_are_graded() -> None:
    assert expected_gradient(GRADED, plan_of("grpo_simple"), group_size=4).cosine(exact_gradient(GRADED)) < 0.99999


@pytest.mark.parametrize("method", ["reinforce", "rloo", "dr_grpo"])
def test_only_the_constant_normaliser_keeps_the_direction_when_lengths_differ(method: str) -> None:
    gradient_P = exact_gradient(WITH_END)

    def cosine(normaliser: str) -> float:
        return expected_gradient(WITH_END, plan_of(method, normaliser=normaliser), group_size=3, generation_limit=2).cosine(gradient_P)

    assert cosine("constant") == pytest.approx(1, abs=1e-10)
    assert cosine("group") == pytest.approx(1, abs=1e-10)
    assert cosine("token") < 0.99999
    assert cosine("own_length") < 0.99999


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if not row.biased_by])
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_a_row_that_claims_no_bias_has_none(method: str, toy: Toy) -> None:
    estimate = expected_gradient(toy, plan_of(method), group_size=3)
    torch.testing.assert_close(estimate.mean_P, exact_gradient(toy), rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.biased_by])
def test_a_row_that_claims_a_bias_has_one(method: str) -> None:
    found, residual = expected_gradient(WITH_END, plan_of(method), group_size=3).multiple_of(exact_gradient(WITH_END))
    assert abs(found - 1) > 1e-3 or residual > 1e-3


def test_alive_baseline_has_less_variance_than_the_same_return_without_it_and_than_rloo() -> None:
    variance = {name: expected_gradient(GRADED, plan_of(name), group_size=4).variance for name in ("reinforce_to_go", "rloo", "alive_loo")}
    assert variance["alive_loo"] < variance["rloo"] < 2 * variance["reinforce_to_go"]
    assert variance["alive_loo"] < variance["reinforce_to_go"]


def test_autograd_of_the_loss_is_the_sum_that_is_enumerated() -> None:
    """The enumeration adds w * score by hand; training differentiates `policy_loss`: for a group they must be the same vector."""
    paths = [(0, 1), (2,), (1, 0)]
    group = Group(trajectories=tuple(trajectory([[a] for a in p], WITH_END.returns(p), member=m, prompt=(3,)) for m, p in enumerate(paths)))
    for name in METHODS:
        plan = plan_of(name)
        logits = WITH_END.logits_SV.clone().requires_grad_()
        logp_M = torch.cat([WITH_END.log_probs(path, logits) for path in paths])
        judged = [Judgement(values_T=np.linspace(0.1, 0.4, len(path))) for path in paths]
        w_M = group_weights(group, plan, logp_M.detach(), 2, judged)
        (gradient,) = torch.autograd.grad(policy_loss(w_M, logp_M), logits)
        by_hand = torch.zeros_like(gradient)
        token = 0
        for path in paths:
            for turn, action in enumerate(path):
                state = WITH_END.histories().index(path[:turn])
                probabilities = torch.softmax(WITH_END.logits_SV[state], -1)
                by_hand[state] -= w_M[token] * (torch.nn.functional.one_hot(torch.tensor(action), 3) - probabilities)
                token += 1
        torch.testing.assert_close(gradient, by_hand, rtol=0, atol=1e-14)
