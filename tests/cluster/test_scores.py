"""The numbers of an evaluation: intervals against known values, pass@k against enumeration, totals against counting."""

import itertools
from dataclasses import replace
from statistics import fmean

import pytest

from cluster.scores import interval, pass_at_k, scores, wilson
from envs.contract import End
from envs.metrics import Reduction
from rollout.types import Group
from tests.cluster.episodes import trajectory


def group(number: int, solved: list[bool]) -> Group:
    """A group whose members are solved or not, as said."""
    members = (trajectory(group=number, member=member, reward=float(won)) for member, won in enumerate(solved))
    return Group(trajectories=tuple(replace(m, end=End.SOLVED if won else End.FAILED) for m, won in zip(members, solved, strict=True)))


@pytest.mark.parametrize(
    ("solved", "n", "expected"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_wilson_gives_the_published_intervals(solved: int, n: int, expected: tuple[float, float]) -> None:
    # Newcombe 1998 (Two-sided confidence intervals for the single proportion), table I, method 3.
    assert wilson(solved / n, n) == pytest.approx(expected, abs=5e-5)


def test_pass_at_k_is_the_share_of_subsets_with_a_success() -> None:
    for n in range(1, 7):
        for solved, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations([True] * solved + [False] * (n - solved), k))
            assert pass_at_k(solved, n, k) == pytest.approx(fmean(any(subset) for subset in subsets))


def test_the_interval_has_a_width_and_holds_the_mean() -> None:
    assert interval([1.0] * 16) == wilson(1.0, 16)
    low, high = interval([0.0, 1.0] * 200)
    # The standard error of 400 draws at one half is 0.025.
    assert (low, high) == pytest.approx((0.451, 0.549), abs=0.006)


def test_scores_of_two_tasks() -> None:
    sampled = [group(0, [True, False, False, False]), group(1, [True, True, True, True])]
    found = scores(sampled, [group(2, [True]), group(3, [False])], {"repeats": Reduction.MEAN})
    assert found["eval/success"] == 5 / 8 and found["eval/success_greedy"] == 1 / 2
    assert found["eval/pass_at_2_low"] < found["eval/pass_at_2"] < found["eval/pass_at_2_high"]
    assert (found["eval/pass_at_2"], found["eval/pass_at_4"]) == (pytest.approx((0.5 + 1) / 2), 1.0)
    assert "eval/pass_at_1" not in found and found["eval/success_low"] < 5 / 8 < found["eval/success_high"]
    assert (found["end/solved"], found["end/failed"], found["rollout/turns"], found["env/repeats"]) == (5 / 8, 3 / 8, 2.0, 1.0)


def test_greedy_alone_describes_the_greedy_episodes() -> None:
    found = scores([], [group(0, [True]), group(1, [False])], {"repeats": Reduction.MEAN})
    assert "eval/success" not in found and found["eval/success_greedy"] == 1 / 2 == found["end/solved"]
