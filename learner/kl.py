"""The KL to a reference policy, as a weight of the sampled tokens or in their reward.

Shape suffixes: `_M` sampled tokens of a micro-batch, `_T` of one episode. With `d = logp - logp_ref`:

    k1 = d          k2 = d^2 / 2          k3 = exp(-d) - 1 + d

In the gradient the KL is a weight (`kl_weight`), in the reward a penalty of each token (`kl_penalty`).
Source: Schulman 2020, "Approximating KL divergence"; k3 in the loss is equation 4 of Shao et al. 2024.
"""

import numpy as np
import torch

from learner.choices import KlEstimator
from learner.types import FloatArray


def kl_estimate(estimator: KlEstimator, *, logp_M: torch.Tensor, ref_logp_M: torch.Tensor) -> torch.Tensor:
    """The value of the estimator at each sampled token, in nats; k1 and k3 have mean KL(pi || pi_ref) under pi."""
    d_M = logp_M - ref_logp_M
    match estimator:
        case "k1":
            return d_M
        case "k2":
            return d_M.square() / 2
        case "k3":
            return torch.expm1(-d_M) + d_M


@torch.no_grad()
def kl_weight(estimator: KlEstimator, coef: float, *, logp_M: torch.Tensor, ref_logp_M: torch.Tensor) -> torch.Tensor:
    """What the term `-coef * estimator` adds to the weight of each token: `-coef * d estimator / d logp`, shape (M,).

        k2   -coef * d                   its mean under pi descends KL(pi || pi_ref)
        k3    coef * (exp(-d) - 1)       its mean under pi descends KL(pi_ref || pi): not the KL that k3 estimates

    k1 is refused here by `learner.plan.resolve`: its derivative is 1, so its weight is a constant and its mean gradient is 0.
    Degenerates: 0 while the policy is the reference.
    """
    d_M = logp_M - ref_logp_M
    match estimator:
        case "k2":
            return -coef * d_M
        case "k3":
            return coef * torch.expm1(-d_M)
        case "k1":
            raise AssertionError("k1 in the gradient is refused when the config is resolved")


def kl_penalty(estimator: KlEstimator, coef: float, *, logp_old_T: FloatArray, ref_logp_T: FloatArray) -> FloatArray:
    """`-coef * estimator` as a reward of each sampled token of one episode, shape (T,), from the sampler's own log-probs.

    With k1 and a reward-to-go, the policy gradient of this reward is exactly that of `-coef * KL(pi || pi_ref)` of episodes,
    because the mean of `grad k1` is 0. k2 and k3 also depend on the policy, which a reward cannot show: their gradient is another.
    Source: Ziegler et al. 2019 (k1).
    """
    estimate = kl_estimate(estimator, logp_M=torch.from_numpy(logp_old_T), ref_logp_M=torch.from_numpy(ref_logp_T))
    return -coef * np.asarray(estimate, dtype=np.float64)
