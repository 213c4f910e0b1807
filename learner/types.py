"""What the optimiser consumes: micro-batches of padded rows, aligned token by token.

Shape suffixes: `_B` rows, `_T` padded token positions, `_M` sampled tokens of a micro-batch in row-major order.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows that go through the model at once.

    Position t of every array speaks of token t as an action, given the tokens before it. Example, one row with the prompt
    `5 6`, the action `40 2`, weight 0.25 a token (credit 0.5, Z = 2):

        token_ids_BT [[5, 6, 40, 2]]   mask_BT [[0, 0, 1, 1]]   credit_BT [[0, 0, .5, .5]]   inverse_z_BT [[0, 0, .5, .5]]

    `credit_BT` and `logp_old_BT` are float; `inverse_z_BT` is 1/Z on sampled tokens, where Z was computed over ALL ranks and
    micro-batches of the optimiser step; `on_policy_BT` marks tokens that the newest weights sampled.
    """

    token_ids_BT: torch.Tensor
    mask_BT: torch.Tensor
    credit_BT: torch.Tensor
    inverse_z_BT: torch.Tensor
    logp_old_BT: torch.Tensor
    on_policy_BT: torch.Tensor

    def __post_init__(self) -> None:
        shape = self.token_ids_BT.shape
        for name in ("mask_BT", "credit_BT", "inverse_z_BT", "logp_old_BT", "on_policy_BT"):
            got = getattr(self, name).shape
            assert got == shape, f"{name} has shape {tuple(got)}, token_ids_BT has {tuple(shape)}"
        assert not self.mask_BT[:, 0].any(), "the first token of a row cannot be an action: nothing comes before it"


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """One optimiser step: for every rank its micro-batches, the same number on each (short ranks get rows of weight 0)."""

    micro_batches: tuple[tuple[MicroBatch, ...], ...]
    padding_fraction: float
