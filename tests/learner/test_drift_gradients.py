"""Autograd of each published off-policy objective, and of PPO with value and entropy, equals autograd of the learner's losses.

The textbook side is written from the papers, episode by episode, and shares nothing with the learner but the episodes.
"""

from collections.abc import Callable
from statistics import fmean, pstdev

import numpy as np
import pytest
import torch

from learner.loss import entropy_loss, policy_loss, token_weights, value_loss
from learner.types import Judgement
from rollout.types import Trajectory
from tests.learner.builders import VOCABULARY, bigram_entropies, bigram_logps, learner_gradient, micro_batches, plan_of, ragged_groups

LIMIT = 12


def _tables() -> tuple[torch.Tensor, torch.Tensor]:
    new, noise = torch.randn(2, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return new, new + 0.9 * noise


NEW, OLD = _tables()
GROUPS = ragged_groups(11, old_VV=OLD, groups=8)
EPISODES = [(group, episode) for group in GROUPS for episode in group.trajectories]
TOKENS = sum(episode.sampled_tokens for _, episode in EPISODES)


def _old(episode: Trajectory) -> torch.Tensor:
    return torch.tensor([logp for turn in episode.turns for logp in turn.logp_old], dtype=torch.float64)


def _advantages() -> list[float]:
    return [episode.reward - fmean(group.rewards) for group, episode in EPISODES]


def _per_token(term: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The sum over all tokens of `term(ratio, log-prob, advantage)` over N * LIMIT."""

    def objective(logits_VV: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for (_, episode), advantage in zip(EPISODES, _advantages(), strict=True):
            logp_T = bigram_logps(logits_VV, episode)
            total = total + term(torch.exp(logp_T - _old(episode)), logp_T, advantage).sum()
        return total / (len(EPISODES) * LIMIT)

    return objective


def _dual_clip(ratio_T: torch.Tensor, _: torch.Tensor, advantage: float) -> torch.Tensor:
    surrogate_T = torch.minimum(ratio_T * advantage, torch.clamp(ratio_T, 0.8, 1.28) * advantage)
    return torch.maximum(surrogate_T, torch.full_like(surrogate_T, 2.0 * advantage)) if advantage < 0 else surrogate_T


def _tis(ratio_T: torch.Tensor, logp_T: torch.Tensor, advantage: float) -> torch.Tensor:
    return torch.minimum(ratio_T, torch.tensor(1.5, dtype=torch.float64)).detach() * advantage * logp_T


def _icepop(ratio_T: torch.Tensor, _: torch.Tensor, advantage: float) -> torch.Tensor:
    return torch.where((ratio_T >= 0.6) & (ratio_T <= 1.7), ratio_T, torch.zeros_like(ratio_T)) * advantage


def _cispo(ratio_T: torch.Tensor, logp_T: torch.Tensor, advantage: float) -> torch.Tensor:
    return torch.clamp(ratio_T, 0.8, 1.28).detach() * advantage * logp_T


def _gspo(logits_VV: torch.Tensor) -> torch.Tensor:
    """Equation 5 of GSPO: the mean over episodes of the clipped surrogate of s = (pi(y) / pi_old(y))^(1/|y|)."""
    terms = []
    for group, episode in EPISODES:
        dead = max(group.rewards) == min(group.rewards)
        advantage = 0.0 if dead else (episode.reward - fmean(group.rewards)) / pstdev(group.rewards)
        s = torch.exp((bigram_logps(logits_VV, episode).sum() - _old(episode).sum()) / episode.sampled_tokens)
        terms.append(torch.minimum(s * advantage, torch.clamp(s, 0.8, 1.28) * advantage))
    return torch.stack(terms).mean()


CASES = {
    "dual clip": (plan_of("dr_grpo", dual_clip=2.0, clip_high=0.28), _per_token(_dual_clip)),
    "tis": (plan_of("dr_grpo", drift="tis", tis_cap=1.5), _per_token(_tis)),
    "icepop": (plan_of("dr_grpo", drift="masked", mask_low=0.6, mask_high=1.7), _per_token(_icepop)),
    "cispo": (plan_of("dr_grpo", drift="cispo", clip_high=0.28), _per_token(_cispo)),
    "gspo": (plan_of("grpo", kl_coef=0.0, drift="sequence", clip_high=0.28), _gspo),
}


@pytest.mark.parametrize("split", [{}, {"ranks": 3, "budget": 40}])
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_published_objective(name: str, split: dict[str, int]) -> None:
    plan, objective = CASES[name]
    logits_VV = NEW.clone().requires_grad_()
    (textbook,) = torch.autograd.grad(-objective(logits_VV), logits_VV)
    assert textbook.abs().max() > 1e-4
    torch.testing.assert_close(learner_gradient(GROUPS, plan, NEW, limit=LIMIT, **split), textbook, rtol=0, atol=1e-12)


def test_the_episodes_reach_every_bound() -> None:
    """Otherwise the test above would prove less than it says."""
    tokens, episodes = set(), set()
    for (_, episode), advantage in zip(EPISODES, _advantages(), strict=True):
        log_ratio_T = bigram_logps(NEW, episode) - _old(episode)
        tokens |= {(bound, float(r) > bound, advantage > 0) for r in log_ratio_T.exp() for bound in (0.6, 0.8, 1.28, 1.5, 1.7, 2.0)}
        episodes |= {(bound, float(log_ratio_T.mean().exp()) > bound, advantage > 0) for bound in (0.8, 1.28)}
    assert len(tokens) == 6 * 4
    assert len(episodes) == 2 * 4


JUDGED = [
    Judgement(values_T=np.sin(np.arange(1.0, 1 + episode.sampled_tokens) * (number + 1))) for number, (_, episode) in enumerate(EPISODES)
]


def _explicit_gae(episode: Trajectory, values_T: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Equation 16 of Schulman et al. 2016 as the double sum that it is."""
    last = np.cumsum([len(turn.token_ids) for turn in episode.turns]) - 1
    rewards = {int(end): turn.reward for end, turn in zip(last, episode.turns, strict=True)}
    v = [*values_T, 0.0]
    deltas = [rewards.get(t, 0.0) + gamma * v[t + 1] - v[t] for t in range(len(values_T))]
    return np.array([sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))])


@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("whiten", [False, True])
def test_ppo_with_value_loss_and_entropy_bonus(whiten: bool, value_clip: float | None) -> None:
    """L = mean_t [min(rA, clip(r)A) + .01 H - .5 * (V - (A + V_old))^2 / 2], every token alike; V is a table over the last token."""
    plan = plan_of("ppo", gamma=0.9, gae_lambda=0.7, whiten=whiten, value_coef=0.5, value_clip=value_clip, entropy_coef=0.01)
    table_V = torch.linspace(-1, 1, VOCABULARY, dtype=torch.float64)
    raw = [_explicit_gae(e, one.values_T, 0.9, 0.7) for (_, e), one in zip(EPISODES, JUDGED, strict=True)]
    centre, spread = (np.concatenate(raw).mean(), np.concatenate(raw).std()) if whiten else (0.0, 1.0)

    def textbook(logits_VV: torch.Tensor, value_V: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for (_, episode), one, gae_T in zip(EPISODES, JUDGED, raw, strict=True):
            advantage_T, old_T = torch.from_numpy((gae_T - centre) / spread), torch.from_numpy(one.values_T)
            ratio_T = torch.exp(bigram_logps(logits_VV, episode) - _old(episode))
            gain_T = torch.minimum(ratio_T * advantage_T, torch.clamp(ratio_T, 0.8, 1.2) * advantage_T)
            before = [episode.token_ids[t - 1] for t, sampled in enumerate(episode.action_mask) if sampled]
            v_T, target_T = value_V[before], torch.from_numpy(gae_T) + old_T
            square_T = (v_T - target_T) ** 2
            if value_clip is not None:
                near_T = torch.minimum(torch.maximum(v_T, old_T - value_clip), old_T + value_clip)
                square_T = torch.maximum(square_T, (near_T - target_T) ** 2)
            total = total + (gain_T + 0.01 * bigram_entropies(logits_VV, episode) - 0.5 * 0.5 * square_T).sum()
        return -total / TOKENS

    logits_VV, value_V = NEW.clone().requires_grad_(), table_V.clone().requires_grad_()
    expected = torch.autograd.grad(textbook(logits_VV, value_V), (logits_VV, value_V))
    loss = torch.zeros((), dtype=torch.float64)
    for part in micro_batches(GROUPS, plan, ranks=2, budget=60, judged=JUDGED):
        assert part.value_target_BT is not None and part.value_old_BT is not None
        mask_BT, before_M = part.mask_BT, part.token_ids_BT[:, :-1][part.mask_BT[:, 1:]]
        log_probs_MV = torch.log_softmax(logits_VV, -1)[before_M]
        logp_M = log_probs_MV.gather(1, part.token_ids_BT[mask_BT][:, None])[:, 0]
        inverse_z_M = part.inverse_z_BT[mask_BT]
        w_M, _ = token_weights(
            plan, credit_M=part.credit_BT[mask_BT], inverse_z_M=inverse_z_M, logp_old_M=part.logp_old_BT[mask_BT], logp_M=logp_M
        )
        loss = loss + policy_loss(w_M, logp_M)
        loss = loss + entropy_loss(0.01, entropy_M=-(log_probs_MV.exp() * log_probs_MV).sum(-1), inverse_z_M=inverse_z_M)
        target_M, old_M = part.value_target_BT[mask_BT], part.value_old_BT[mask_BT]
        loss = loss + value_loss(0.5, value_clip, value_M=value_V[before_M], target_M=target_M, old_M=old_M, inverse_z_M=inverse_z_M)
    for ours, theirs in zip(torch.autograd.grad(loss, (logits_VV, value_V)), expected, strict=True):
        assert theirs.abs().max() > 1e-4
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
