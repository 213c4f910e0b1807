"""Autograd of each textbook objective equals autograd of the one loss, on ragged multi-turn episodes.

The textbook side is written from the papers, episode by episode, and shares nothing with the learner but the episodes.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

import pytest
import torch

from rollout.types import Group
from tests.learner.builders import VOCABULARY, bigram_entropies, bigram_logps, learner_gradient, plan_of, ragged_groups

LIMIT = 12


def _tables() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    new, old, ref = torch.randn(3, VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)
    return new, new + 0.3 * old, new + 0.5 * ref


NEW, OLD, REF = _tables()
GROUPS = ragged_groups(11, old_VV=OLD)
TOKENS = sum(episode.sampled_tokens for group in GROUPS for episode in group.trajectories)
EPISODES = sum(len(group.trajectories) for group in GROUPS)

Objective = Callable[[torch.Tensor], torch.Tensor]


def _surrogate(logp_T: torch.Tensor, old_T: torch.Tensor, advantage: float) -> torch.Tensor:
    """PPO equation 7, per token, with clip 0.8 .. 1.28."""
    ratio_T = torch.exp(logp_T - old_T)
    return torch.minimum(ratio_T * advantage, torch.clamp(ratio_T, 1 - 0.2, 1 + 0.28) * advantage)


def _behaviour(episode) -> torch.Tensor:
    return torch.tensor([logp for turn in episode.turns for logp in turn.logp_old], dtype=torch.float64)


def _episodes(groups: Sequence[Group]):
    return [(group, episode) for group in groups for episode in group.trajectories]


def _sft(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([bigram_logps(logits, episode) for _, episode in _episodes(GROUPS)]).mean()


def _reinforce(logits: torch.Tensor) -> torch.Tensor:
    return sum((e.reward - 0.4) * bigram_logps(logits, e).sum() for _, e in _episodes(GROUPS)) / (EPISODES * LIMIT)


def _reinforce_to_go(logits: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for _, episode in _episodes(GROUPS):
        logp_T, done = bigram_logps(logits, episode), 0
        for number, turn in enumerate(episode.turns):
            later = sum(t.reward for t in episode.turns[number:])
            total = total + later * logp_T[done : done + len(turn.token_ids)].sum()
            done += len(turn.token_ids)
    return total / (EPISODES * LIMIT)


def _rloo(logits: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for group, episode in _episodes(GROUPS):
        others = [other.reward for other in group.trajectories if other is not episode]
        total = total + (episode.reward - fmean(others)) * bigram_logps(logits, episode).sum()
    return total / (EPISODES * LIMIT)


def _ppo(logits: torch.Tensor) -> torch.Tensor:
    """Mean over all tokens of the clipped surrogate, advantages centred over the group."""
    terms = [_surrogate(bigram_logps(logits, e), _behaviour(e), e.reward - fmean(g.rewards)) for g, e in _episodes(GROUPS)]
    return torch.cat(terms).mean()


def _dr_grpo(logits: torch.Tensor) -> torch.Tensor:
    terms = [_surrogate(bigram_logps(logits, e), _behaviour(e), e.reward - fmean(g.rewards)).sum() / LIMIT for g, e in _episodes(GROUPS)]
    return torch.stack(terms).mean()


def _grpo(kl: Callable[[torch.Tensor], torch.Tensor]) -> Objective:
    """Equation 3 of DeepSeekMath: mean over groups, siblings and own tokens of (clipped surrogate - 0.04 * KL estimate)."""

    def objective(logits: torch.Tensor) -> torch.Tensor:
        terms = []
        for group, episode in _episodes(GROUPS):
            spread = pstdev(group.rewards) if len(set(group.rewards)) > 1 else 1.0
            advantage = (episode.reward - fmean(group.rewards)) / spread if len(set(group.rewards)) > 1 else 0.0
            logp_T = bigram_logps(logits, episode)
            terms.append((_surrogate(logp_T, _behaviour(episode), advantage) - 0.04 * kl(logp_T - bigram_logps(REF, episode))).mean())
        return torch.stack(terms).mean()

    return objective


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    return _dr_grpo(logits) + 0.01 * torch.stack([bigram_entropies(logits, e).sum() for _, e in _episodes(GROUPS)]).mean() / LIMIT


CLIPS = {"clip_high": 0.28}
CASES = {
    "sft": (plan_of("sft"), _sft),
    "reinforce": (plan_of("reinforce", baseline="constant", baseline_constant=0.4), _reinforce),
    "reinforce_to_go": (plan_of("reinforce_to_go"), _reinforce_to_go),
    "rloo": (plan_of("rloo"), _rloo),
    "ppo clip, token mean": (plan_of("dr_grpo", normaliser="token", **CLIPS), _ppo),
    "dr_grpo": (plan_of("dr_grpo", **CLIPS), _dr_grpo),
    "dr_grpo + entropy": (plan_of("dr_grpo", entropy_coef=0.01, **CLIPS), _entropy),
    "grpo, k3": (plan_of("grpo", **CLIPS), _grpo(lambda d: torch.exp(-d) - 1 + d)),
    "grpo, k2": (plan_of("grpo", kl_estimator="k2", **CLIPS), _grpo(lambda d: d**2 / 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_textbook_objective(name: str) -> None:
    plan, objective = CASES[name]
    logits = NEW.clone().requires_grad_()
    (textbook,) = torch.autograd.grad(-objective(logits), logits)
    ours = learner_gradient(GROUPS, plan, NEW, ref_VV=REF if plan.kl_coef > 0 else None, limit=LIMIT)
    assert textbook.abs().max() > 1e-4
    torch.testing.assert_close(ours, textbook, rtol=0, atol=1e-12)


def test_the_episodes_reach_both_clips_and_both_unclipped_sides() -> None:
    """Otherwise the test above would prove less than it says."""
    seen = set()
    for group, episode in _episodes(GROUPS):
        advantage = episode.reward - fmean(group.rewards)
        ratio_T = torch.exp(bigram_logps(NEW, episode) - _behaviour(episode))
        for ratio in ratio_T.tolist():
            if ratio > 1.28 or ratio < 0.8:
                seen.add((ratio > 1, advantage > 0))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def test_expected_kl_weights_descend_the_kl_that_their_docstring_names() -> None:
    """One-step policy over six tokens, exact means under pi: k2 descends KL(pi || ref), k3 descends KL(ref || pi)."""
    from learner.kl import kl_estimate, kl_weight

    logits = NEW[0, :6].clone().requires_grad_()
    logp, ref = torch.log_softmax(logits, -1), torch.log_softmax(REF[0, :6], -1)
    for estimator, kl in (("k2", (logp.exp() * (logp - ref)).sum()), ("k3", (ref.exp() * (ref - logp)).sum())):
        weight = kl_weight(estimator, 1.0, logp_M=logp.detach(), ref_logp_M=ref)
        (ascent,) = torch.autograd.grad((logp.detach().exp() * weight * logp).sum(), logits, retain_graph=True)
        (descent,) = torch.autograd.grad(-kl, logits, retain_graph=True)
        torch.testing.assert_close(ascent, descent, rtol=0, atol=1e-12)
    exact = (logp.exp() * (logp - ref)).sum()
    for estimator in ("k1", "k3"):
        mean = (logp.exp() * kl_estimate(estimator, logp_M=logp, ref_logp_M=ref)).sum()
        torch.testing.assert_close(mean, exact, rtol=0, atol=1e-12)
