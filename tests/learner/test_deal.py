"""How rows are dealt: every row once, within the budget, hardly any padding, as many micro-batches on every rank."""

from hypothesis import example, given
from hypothesis import strategies as st

from learner.deal import MOST_PADDING, deal


@example(lengths=[4000, 3900, 100, 90], ranks=1, budget=100_000)
@given(lengths=st.lists(st.integers(1, 4000), max_size=40), ranks=st.integers(1, 5), budget=st.integers(1, 40_000))
def test_every_row_is_dealt_once_into_micro_batches_that_fit_and_pad_little(lengths: list[int], ranks: int, budget: int) -> None:
    dealt = deal(lengths, ranks=ranks, budget=budget)
    assert len(dealt) == ranks and len({len(parts) for parts in dealt}) == 1
    parts = [part for parts in dealt for part in parts]
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in filter(None, parts):
        laid = len(part) * lengths[part[0]]
        assert lengths[part[0]] == max(lengths[row] for row in part)
        assert laid <= budget or len(part) == 1
        assert sum(lengths[row] for row in part) >= (1 - MOST_PADDING) * laid


def test_rows_of_one_length_fill_the_budget() -> None:
    assert deal([10] * 7, ranks=1, budget=30) == [[[0, 1, 2], [3, 4, 5], [6]]]
    assert deal([10] * 7, ranks=2, budget=30) == [[[0, 2, 4], [6]], [[1, 3, 5], []]]
    assert deal([], ranks=2, budget=30) == [[[]], [[]]]
