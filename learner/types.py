"""What the optimiser consumes: micro-batches of padded rows, aligned token by token.

Shape suffixes: `_B` rows, `_T` padded token positions, `_M` sampled tokens of a micro-batch in row-major order.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the learner says of the sampled tokens of one episode before they get credit; None is what the plan has no use for.

    `values_T` is V(h_t), the expected return before token t was sampled; `ref_logp_T` the reference's log-prob, in nats. Example,
    two sampled tokens, no KL: `Judgement(values_T=np.array([0.4, 0.7]))`.
    """

    values_T: FloatArray | None = None
    ref_logp_T: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows that go through the model at once.

    Position t of every array speaks of token t as an action, given the tokens before it. Example, one row with the prompt
    `5 6`, the action `40 2`, weight 0.25 a token (credit 0.5, Z = 2):

        token_ids_BT [[5, 6, 40, 2]]   mask_BT [[0, 0, 1, 1]]   credit_BT [[0, 0, .5, .5]]   inverse_z_BT [[0, 0, .5, .5]]

    `value_target_BT` (what V should have said) and `value_old_BT` (what it said) are there if V is trained.
    `credit_BT` and `logp_old_BT` are float; `inverse_z_BT` is 1/Z on sampled tokens, where Z was computed over ALL ranks and
    micro-batches of the optimiser step; `on_policy_BT` marks tokens that the newest weights sampled, without a departure.
    """

    token_ids_BT: torch.Tensor
    mask_BT: torch.Tensor
    credit_BT: torch.Tensor
    inverse_z_BT: torch.Tensor
    logp_old_BT: torch.Tensor
    on_policy_BT: torch.Tensor
    value_target_BT: torch.Tensor | None = None
    value_old_BT: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.token_ids_BT.shape
        for name, values_BT in vars(self).items():
            assert values_BT is None or values_BT.shape == shape, f"{name} has shape {tuple(values_BT.shape)}, expected {tuple(shape)}"
        assert not self.mask_BT[:, 0].any(), "the first token of a row cannot be an action: nothing comes before it"


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """One optimiser step: for every rank its micro-batches, the same number on each (short ranks get rows of weight 0)."""

    micro_batches: tuple[tuple[MicroBatch, ...], ...]
    padding_fraction: float
