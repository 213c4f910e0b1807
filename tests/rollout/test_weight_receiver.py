"""Both ends of a push cut it into the same buffers: all tensors, in order, none of them twice."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rollout.weight_receiver import plan_chunks


@given(sizes=st.lists(st.integers(0, 50), max_size=40), limit=st.integers(1, 100))
def test_chunks_cover_every_tensor_once_and_in_order(sizes: list[int], limit: int) -> None:
    chunks = plan_chunks(sizes, limit)
    assert [index for chunk in chunks for index in chunk] == list(range(len(sizes)))
    assert all(len(chunk) for chunk in chunks)


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=40), limit=st.integers(1, 100))
def test_a_chunk_is_within_the_limit_unless_one_tensor_alone_is_not(sizes: list[int], limit: int) -> None:
    for chunk in plan_chunks(sizes, limit):
        assert sum(sizes[i] for i in chunk) <= limit or len(chunk) == 1


@given(sizes=st.lists(st.integers(0, 50), max_size=40), limit=st.integers(1, 100))
def test_no_chunk_could_have_taken_the_first_tensor_of_the_next(sizes: list[int], limit: int) -> None:
    chunks = plan_chunks(sizes, limit)
    for chunk, following in pairwise(chunks):
        assert sum(sizes[i] for i in chunk) + sizes[following[0]] > limit
