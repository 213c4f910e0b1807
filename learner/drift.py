"""Drift: the factor of the weight that accounts for a sampling policy older than the trained one.

Shape suffix: `_M` sampled tokens of a micro-batch.
"""

from dataclasses import dataclass

import torch

from learner.plan import Plan


@dataclass(frozen=True, kw_only=True)
class DriftFactor:
    """The factor of each token with what it was made of. `ratio_M` is `pi / pi_old`, `clipped_M` is True where the factor is 0."""

    factor_M: torch.Tensor
    ratio_M: torch.Tensor
    clipped_M: torch.Tensor


@torch.no_grad()
def drift(plan: Plan, *, credit_M: torch.Tensor, logp_M: torch.Tensor, logp_old_M: torch.Tensor) -> DriftFactor:
    """The detached factor of each token.

        none       1
        ppo_clip   r = pi / pi_old; 0 where credit > 0 and r > 1 + clip_high, or credit < 0 and r < 1 - clip_low

    With it, the gradient of `-(credit * factor * logp)` is that of `-min(r * credit, clip(r, 1 - low, 1 + high) * credit)`,
    because `grad r = r * grad logp` and the clipped branch is constant. Source: Schulman et al. 2017 (PPO), equation 7.
    All arguments have shape (M,), log-probs in nats. Degenerates: with r = 1 everywhere it is `none`.
    """
    assert credit_M.shape == logp_M.shape == logp_old_M.shape, "credit and log-probs are aligned by sampled token"
    ratio_M = torch.exp(logp_M - logp_old_M)
    if plan.drift == "none":
        return DriftFactor(factor_M=torch.ones_like(ratio_M), ratio_M=ratio_M, clipped_M=torch.zeros_like(ratio_M, dtype=torch.bool))
    too_high_M = (credit_M > 0) & (ratio_M > 1 + plan.config.clip_high)
    too_low_M = (credit_M < 0) & (ratio_M < 1 - plan.config.clip_low)
    clipped_M = too_high_M | too_low_M
    return DriftFactor(factor_M=ratio_M.masked_fill(clipped_M, 0), ratio_M=ratio_M, clipped_M=clipped_M)
