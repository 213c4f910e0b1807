"""The ways of `pickaxe selfcheck` to cut one optimiser step: the same rows, other micro-batches, ranks and order.

Shape suffixes: `_B` rows, `_T` padded token positions.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from learner.types import MicroBatch, OptimizerStep

Shares = tuple[tuple[MicroBatch, ...], ...]
"""For every rank its micro-batches."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to cut the step. `micro_batches` of a rank are accumulated."""

    name: str
    shares: Shares

    @property
    def ranks(self) -> int:
        """How many ranks the rows are dealt to."""
        return len(self.shares)

    @property
    def accumulated(self) -> int:
        """Micro-batches of every rank."""
        return len(self.shares[0])


def cases(cut: Callable[[int, int], OptimizerStep], *, budget: int, ranks: Sequence[int]) -> list[Case]:
    """The reference first: one rank, micro-batches of `budget` padded tokens. `cut(ranks, budget)` packs the step.

    What is cut exactly as a case before it is left out: it would prove nothing.
    """
    reference = cut(1, budget).micro_batches
    largest = max(part.token_ids_BT.numel() for part in reference[0])
    found = [
        Case(name="the recipe's own", shares=reference),
        Case(name="row by row", shares=cut(1, 1).micro_batches),
        Case(name="half as large", shares=cut(1, largest // 2).micro_batches),
        Case(name="twice as large", shares=cut(1, 2 * budget).micro_batches),
        Case(name="rows shuffled", shares=shuffled(reference, seed=0)),
    ]
    for count in ranks:
        whole = cut(count, budget).micro_batches
        found += [
            Case(name=f"{count} ranks", shares=whole),
            Case(name=f"{count} ranks, row by row", shares=cut(count, 1).micro_batches),
            Case(name=f"{count} ranks, shuffled", shares=shuffled(whole, seed=count)),
        ]
    return [case for number, case in enumerate(found) if not any(_same(case.shares, before.shares) for before in found[:number])]


def shuffled(shares: Shares, seed: int) -> Shares:
    """The same rows dealt at random to as many ranks and micro-batches of as many rows; short rows now stand beside long ones."""
    rows = [row for share in shares for part in share for row in _rows(part)]
    random.Random(seed).shuffle(rows)
    dealt = iter(rows)
    return tuple(tuple(_stack([next(dealt) for _ in part.token_ids_BT]) for part in share) for share in shares)


_Row = dict[str, torch.Tensor | None]


def _rows(part: MicroBatch) -> Iterator[_Row]:
    """The rows without their padding. What follows a row's last action is padding: an episode ends with one."""
    for number, mask_T in enumerate(part.mask_BT):
        length = int(mask_T.nonzero().max()) + 1
        yield {name: None if values_BT is None else values_BT[number, :length] for name, values_BT in vars(part).items()}


def _stack(rows: Sequence[_Row]) -> MicroBatch:
    def column(name: str) -> torch.Tensor | None:
        present = [values_T for row in rows if (values_T := row[name]) is not None]
        return torch.nn.utils.rnn.pad_sequence(present, batch_first=True) if present else None

    columns: dict[str, Any] = {name: column(name) for name in rows[0]}
    return MicroBatch(**columns)


def _same(one: Shares, other: Shares) -> bool:
    """True if both have the same rows in the same places."""
    if [len(share) for share in one] != [len(share) for share in other]:
        return False
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a, b, strict=True)]
    return all(torch.equal(a.token_ids_BT, b.token_ids_BT) and torch.equal(a.credit_BT, b.credit_BT) for a, b in pairs)
