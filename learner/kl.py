"""The KL to a reference policy, as a weight of the sampled tokens.

Shape suffix: `_M` sampled tokens of a micro-batch. With `d = logp - logp_ref`:

    k1 = d          k2 = d^2 / 2          k3 = exp(-d) - 1 + d

Source: Schulman 2020, "Approximating KL divergence"; k3 in the loss is equation 4 of Shao et al. 2024.
"""

import torch

from learner.methods import KlEstimator


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

    k1 is refused by `learner.plan.resolve`: its derivative is 1, so its weight is a constant and its mean gradient is 0.
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
