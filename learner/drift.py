"""Drift: the factor of the weight that accounts for a sampling policy older than the trained one.

Shape suffixes: `_M` sampled tokens of a micro-batch, `_R` its rows.
"""

from dataclasses import dataclass

import torch

from learner.config import AlgorithmConfig
from learner.plan import Plan


@dataclass(frozen=True, kw_only=True)
class DriftFactor:
    """The factor of each token with what it was made of. `ratio_M` is `pi / pi_old`; `clipped_M` marks factors that a bound changed."""

    factor_M: torch.Tensor
    ratio_M: torch.Tensor
    clipped_M: torch.Tensor


@torch.no_grad()
def drift(
    plan: Plan, *, credit_M: torch.Tensor, logp_M: torch.Tensor, logp_old_M: torch.Tensor, row_M: torch.Tensor | None = None
) -> DriftFactor:
    """The detached factor of each token; r = pi / pi_old of the token, pi_old the policy that sampled it.

        none       1
        ppo_clip   r; 0 where credit > 0 and r > 1 + clip_high, or credit < 0 and (r < 1 - clip_low or r > dual_clip)
        tis        min(r, tis_cap)
        masked     r; 0 where r < mask_low or r > mask_high
        sequence   as ppo_clip, with one ratio an episode, the geometric mean of its r
        cispo      r clipped to 1 - clip_low .. 1 + clip_high; no token loses its gradient

    ppo_clip has the gradient of `-min(r * credit, clip(r, 1 - low, 1 + high) * credit)`, with dual_clip c of the maximum of
    that minimum and `c * credit` where credit < 0: `grad r = r * grad logp`, and a clipped branch is constant. With the normaliser
    `own_length`, sequence has the gradient of the clipped objective of the episode's ratio: `grad s = s * mean_t grad logp`.
    Sources: ppo_clip Schulman et al. 2017, equation 7; clip_high > clip_low Yu et al. 2025 (DAPO), section 3.1; dual_clip Ye et al.
    2020, dual-clip PPO; tis Ionides 2008, for sampler mismatch Yao et al. 2025; masked Zhao et al. 2025 (IcePop); sequence Zheng et
    al. 2025 (GSPO), equations 5 and 7; cispo MiniMax 2025 (MiniMax-M1), equations 4 and 5.
    All arguments have shape (M,), log-probs in nats; `row_M` numbers the episode of each token and only sequence needs it.
    Degenerates: with r = 1 everywhere every choice is `none`.
    """
    assert credit_M.shape == logp_M.shape == logp_old_M.shape, "credit and log-probs are aligned by sampled token"
    config = plan.config
    ratio_M = torch.exp(logp_M - logp_old_M)
    factor_M = ratio_M
    match plan.drift:
        case "none":
            return DriftFactor(factor_M=torch.ones_like(ratio_M), ratio_M=ratio_M, clipped_M=torch.zeros_like(ratio_M, dtype=torch.bool))
        case "ppo_clip":
            clipped_M = _clipped(config, credit_M, ratio_M)
            factor_M = ratio_M.masked_fill(clipped_M, 0)
        case "tis":
            clipped_M = ratio_M > config.tis_cap
            factor_M = ratio_M.clamp(max=config.tis_cap)
        case "masked":
            clipped_M = (ratio_M < config.mask_low) | (ratio_M > config.mask_high)
            factor_M = ratio_M.masked_fill(clipped_M, 0)
        case "sequence":
            assert row_M is not None, "a ratio of episodes needs to know which token is of which episode"
            episode_ratio_M = torch.exp(_row_mean(logp_M - logp_old_M, row_M))
            clipped_M = _clipped(config, credit_M, episode_ratio_M)
            factor_M = episode_ratio_M.masked_fill(clipped_M, 0)
        case "cispo":
            factor_M = ratio_M.clamp(1 - config.clip_low, 1 + config.clip_high)
            clipped_M = factor_M != ratio_M
    return DriftFactor(factor_M=factor_M, ratio_M=ratio_M, clipped_M=clipped_M)


def _clipped(config: AlgorithmConfig, credit_M: torch.Tensor, ratio_M: torch.Tensor) -> torch.Tensor:
    clipped_M = (credit_M > 0) & (ratio_M > 1 + config.clip_high) | (credit_M < 0) & (ratio_M < 1 - config.clip_low)
    if config.dual_clip is not None:
        clipped_M |= (credit_M < 0) & (ratio_M > config.dual_clip)
    return clipped_M


def _row_mean(values_M: torch.Tensor, row_M: torch.Tensor) -> torch.Tensor:
    """For each token the mean over the tokens of its row."""
    if not len(row_M):
        return values_M
    rows = int(row_M.max()) + 1
    sums_R = values_M.new_zeros(rows).index_add_(0, row_M, values_M)
    counts_R = values_M.new_zeros(rows).index_add_(0, row_M, torch.ones_like(values_M))
    return (sums_R / counts_R)[row_M]
