"""Rows that are judged, not trained: laid on one tensor, and taken apart again."""

from collections.abc import Sequence

import torch

from learner.types import FloatArray


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
