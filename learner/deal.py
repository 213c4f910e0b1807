"""How rows are dealt to ranks and micro-batches. It changes memory and time, never a gradient."""

from collections.abc import Sequence

MOST_PADDING = 0.1
"""Share of padding that a micro-batch may have; rows of very different length go into different ones."""


def deal(lengths: Sequence[int], *, ranks: int, budget: int) -> list[list[list[int]]]:
    """For every rank its micro-batches, each a list of row numbers; every rank has as many, or a collective would hang: some are empty.

    `lengths` and `budget` are tokens; the budget bounds rows x longest row of a micro-batch, and a row that is longer has one to itself.
    Longest rows first, dealt in turn: neighbours pad little, and what does not fit in memory fails at once.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    dealt = [_cut(order[rank::ranks], lengths, budget) for rank in range(ranks)]
    count = max(1, *map(len, dealt))
    return [parts + [[] for _ in range(count - len(parts))] for parts in dealt]


def _cut(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    parts: list[list[int]] = []
    tokens = 0
    for row in order:
        laid = (len(parts[-1]) + 1) * lengths[parts[-1][0]] if parts else 0
        if parts and laid <= budget and tokens + lengths[row] >= (1 - MOST_PADDING) * laid:
            parts[-1].append(row)
            tokens += lengths[row]
        else:
            parts.append([row])
            tokens = lengths[row]
    return parts
