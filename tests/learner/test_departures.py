"""Episodes of another sampler: the drift corrects them exactly, and the gap between sampler and learner does not speak of them."""

import itertools
from dataclasses import replace

import pytest
import torch

from learner.batch import optimizer_steps
from learner.credit import initial_baseline
from rollout.types import Departure, Group, Trajectory
from tests.learner.builders import VOCABULARY, bigram_logps, learner_gradient, plan_of, trajectory

LOGITS = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
PROMPT = (5, 6, 7)
EXACT = {"drift": "tis", "tis_cap": 1e9}


def one_token(token: int, member: int, logp: float, departure: Departure) -> Trajectory:
    episode = trajectory([[token]], [float(token % 3 == 0)], member=member, prompt=PROMPT, logp_old=[logp])
    return replace(episode, departures=(departure,))


@pytest.mark.parametrize("temperature", [0.7, 1.6])
def test_the_expected_gradient_of_hot_samples_is_that_of_the_policy_itself(temperature: float) -> None:
    """Every pair of one-token episodes sampled at another temperature, with its probability: E[g] = grad J to rounding."""
    logp_V = torch.log_softmax(LOGITS[PROMPT[-1]] / temperature, -1)
    expected_VV = torch.zeros_like(LOGITS)
    for a, b in itertools.product(range(VOCABULARY), repeat=2):
        members = [one_token(token, number, float(logp_V[token]), Departure.TEMPERATURE) for number, token in enumerate((a, b))]
        group = Group(trajectories=tuple(members))
        probability = float((logp_V[a] + logp_V[b]).exp())
        expected_VV -= probability * learner_gradient([group], plan_of("rloo", **EXACT), LOGITS, limit=1)
    leaf_VV = LOGITS.clone().requires_grad_()
    torch.softmax(leaf_VV[PROMPT[-1]], -1)[::3].sum().backward()
    torch.testing.assert_close(expected_VV, leaf_VV.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("drift", [EXACT, {"drift": "tis"}, {"drift": "ppo_clip"}])
def test_a_demonstration_climbs_the_probability_of_its_actions(drift: dict[str, object]) -> None:
    """`r * grad log pi = grad pi` for pi / 1: autograd of `sum_t A * pi(a_t | h_t)` for the player, of `A * log pi` for the policy."""
    siblings = [trajectory([[1, 2], [member]], [0.0, 0.0], member=member) for member in range(3)]
    siblings = [
        trajectory([[1, 2], [m]], [0.0, 0.0], member=m, logp_old=bigram_logps(LOGITS, one).tolist()) for m, one in enumerate(siblings)
    ]
    shown = trajectory([[3, 2], [4]], [0.0, 1.0], member=3, logp_old=[0.0] * 3)
    group = Group(trajectories=(*siblings, replace(shown, departures=(Departure.PLAYER,))))
    leaf_VV = LOGITS.clone().requires_grad_()
    own = sum(-0.25 * bigram_logps(leaf_VV, one).sum() for one in siblings)
    (-(own + 0.75 * bigram_logps(leaf_VV, shown).exp().sum()) / (4 * 6)).backward()
    torch.testing.assert_close(learner_gradient([group], plan_of("dr_grpo", **drift), LOGITS, limit=6), leaf_VV.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("departure", Departure)
def test_tokens_of_another_sampler_are_not_on_policy(departure: Departure) -> None:
    plan = plan_of("dr_grpo")
    other = replace(trajectory([[1, 2]], [1.0], version=3), departures=(departure,))
    group = Group(trajectories=(other, trajectory([[1, 3]], [0.0], member=1, version=3)))
    (step,), _, _ = optimizer_steps(
        [group], plan, ranks=1, micro_batch_tokens=99, generation_limit=9, baseline_state=initial_baseline(plan), current_version=3
    )
    ((part,),) = step.micro_batches
    by_last = {
        int(ids[-1]): fresh[mask].tolist() for ids, mask, fresh in zip(part.token_ids_BT, part.mask_BT, part.on_policy_BT, strict=True)
    }
    assert by_last == {2: [False, False], 3: [True, True]}
