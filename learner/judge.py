"""How rows are dealt to the ranks to be judged: every rank the same number of forward passes, or a collective would hang."""

from collections.abc import Sequence

import torch

from learner.types import FloatArray


def deal(lengths: Sequence[int], *, rank: int, ranks: int, budget: int) -> list[list[int]]:
    """The numbers of the rows in each forward pass of `rank`; every rank gets as many passes, some of them empty.

    Longest rows first, dealt in turn, so that a pass pads little; `budget` bounds rows x longest row of all, in tokens.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    rows = max(1, budget // max(lengths))
    passes = -(-len(order) // (ranks * rows))
    mine = order[rank::ranks]
    return [mine[number * rows : (number + 1) * rows] for number in range(passes)]


def padded(rows: Sequence[Sequence[int]], masks: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and masks of rows, padded on the right with 0, both (B, T); no row gives one row without a sampled token."""
    if not rows:
        return torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.bool)
    ids = [torch.tensor(row) for row in rows]
    marks = [torch.tensor(mask, dtype=torch.bool) for mask in masks]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(ids, batch_first=True), pad(marks, batch_first=True)


def by_row(values_M: torch.Tensor | None, mask_BT: torch.Tensor) -> list[FloatArray] | list[None]:
    """The values of each row's sampled tokens; None for each row if there are none."""
    if values_M is None:
        return [None] * len(mask_BT)
    return [part.numpy() for part in torch.split(values_M.double().cpu(), mask_BT.sum(-1).tolist())]
