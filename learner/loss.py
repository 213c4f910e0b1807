"""The one policy loss, and the only two terms beside it: the entropy bonus and the regression of a learned value.

Shape suffix: `_M` sampled tokens of a micro-batch. Simplifications: none of these knows a method, a mask or a denominator;
the method is in the weights, padding never gets here, and 1/Z is part of the weight.
"""

import torch

from envs.metrics import Metric, Reduction
from learner.config import AlgorithmConfig
from learner.drift import drift
from learner.kl import kl_estimate, kl_weight
from learner.plan import Plan


@torch.no_grad()
def token_weights(
    plan: Plan,
    *,
    credit_M: torch.Tensor,
    inverse_z_M: torch.Tensor,
    logp_old_M: torch.Tensor,
    logp_M: torch.Tensor,
    ref_logp_M: torch.Tensor | None = None,
    row_M: torch.Tensor | None = None,
    regularise: float = 1.0,
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """The weight of each sampled token, detached, in the dtype of `logp_M`, and how far the policy drifted.

        w = (credit * drift + regularise * kl) / Z

    All arguments have shape (M,), log-probs in nats; `ref_logp_M` is needed when the plan has a KL in the gradient and is only
    measured otherwise; `row_M` numbers the episodes, for a drift of whole episodes. The metrics count tokens with 1/Z > 0, and are
    left out when there is none.
    """
    drifted = drift(plan, credit_M=credit_M, logp_M=logp_M, logp_old_M=logp_old_M, row_M=row_M)
    inner_M = credit_M * drifted.factor_M
    if plan.kl_in_gradient:
        assert ref_logp_M is not None, "a plan with a KL in the gradient needs the log-probs of the reference policy"
        inner_M = inner_M + kl_weight(plan.config.kl_estimator, regularise * plan.kl_coef, logp_M=logp_M, ref_logp_M=ref_logp_M)
    counted_M = inverse_z_M > 0
    tokens = int(counted_M.sum())
    metrics: dict[str, Metric] = {}
    if tokens:
        ratio_M = drifted.ratio_M[counted_M]
        metrics["learner/ratio_mean"] = Metric(value=ratio_M.mean().item(), weight=tokens)
        metrics["learner/ratio_max"] = Metric(value=ratio_M.max().item(), reduction=Reduction.MAX)
        metrics["learner/clip_fraction"] = Metric(value=drifted.clipped_M[counted_M].double().mean().item(), weight=tokens)
        if ref_logp_M is not None:
            k3_M = kl_estimate("k3", logp_M=logp_M, ref_logp_M=ref_logp_M)[counted_M]
            metrics["learner/kl_ref_nats"] = Metric(value=k3_M.mean().item(), weight=tokens)
    return (inverse_z_M * inner_M).to(logp_M.dtype), metrics


def policy_loss(w_M: torch.Tensor, logp_M: torch.Tensor) -> torch.Tensor:
    """`-(w * logp).sum()`, a scalar whose gradient is the negative of `sum_t w_t * grad log pi(a_t | h_t)`.

    Source: Williams 1992; every method of `learner.methods` is this loss with its own `w`. Shapes (M,).
    """
    assert w_M.shape == logp_M.shape, f"weights have shape {tuple(w_M.shape)}, log-probs {tuple(logp_M.shape)}"
    assert not w_M.requires_grad, "the weights are constants of the gradient"
    return -(w_M * logp_M).sum()


def regulariser_scale(config: AlgorithmConfig, step: int, total_steps: int) -> float:
    """What the entropy bonus and the KL in the gradient are multiplied by at optimiser step `step` (0-based).

    1                                   constant
    1 - step / total_steps, at least 0  linear
    """
    return 1.0 if config.regulariser_schedule == "constant" else max(0.0, 1 - step / max(1, total_steps))


def entropy_loss(coef: float, *, entropy_M: torch.Tensor, inverse_z_M: torch.Tensor) -> torch.Tensor:
    """`-coef * (H / Z).sum()`, the entropy bonus: the one term that is not a weight of a sampled token.

    `entropy_M` is the entropy of the whole next-token distribution at each sampled token, in nats. Source: Williams and Peng 1991.
    """
    assert entropy_M.shape == inverse_z_M.shape, "entropy and 1/Z are aligned by sampled token"
    return -coef * (entropy_M * inverse_z_M.to(entropy_M.dtype)).sum()


def value_loss(
    coef: float,
    clip: float | None,
    *,
    value_M: torch.Tensor,
    target_M: torch.Tensor,
    old_M: torch.Tensor,
    inverse_z_M: torch.Tensor,
) -> torch.Tensor:
    """`coef * sum (V - target)^2 / 2 / Z`, the regression of V(h_t) on its targets, a scalar.

    With `clip` each square is the larger one of V and of V clipped to `old -+ clip`, so that a value that has moved that far towards
    its target in one batch gets no more gradient. Shapes (M,); V has the unit of the reward. Source: Schulman et al. 2017,
    equation 9; the clip is of their published code.
    """
    assert value_M.shape == target_M.shape == old_M.shape == inverse_z_M.shape, "values, targets and 1/Z are aligned by sampled token"
    target_M, old_M = target_M.to(value_M.dtype), old_M.to(value_M.dtype)
    square_M = (value_M - target_M).square()
    if clip is not None:
        square_M = torch.maximum(square_M, (old_M + (value_M - old_M).clamp(-clip, clip) - target_M).square())
    return coef * 0.5 * (square_M * inverse_z_M.to(value_M.dtype)).sum()
