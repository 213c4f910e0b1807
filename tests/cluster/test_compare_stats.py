"""The numbers of a comparison, by hand and by simulation; what a comparison is made of."""

import math
import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.compare.stats import Curve, area, episodes_to, mean, over_seeds, read_curve, t_quantile, table
from cluster.compare.view import cells, markdown
from cluster.load_config import load_config


def curve(*success: float, every: float = 100.0) -> Curve:
    steps = range(len(success))
    return Curve(episodes=tuple(every * step for step in steps), seconds=tuple(2.0 * step for step in steps), success=success)


def test_quantiles_are_the_published_ones() -> None:
    published = {1: 12.706, 2: 4.303, 5: 2.571, 9: 2.262, 10: 2.228, 15: 2.131, 30: 2.042, 120: 1.980}
    for degrees, quantile in published.items():
        assert t_quantile(degrees) == pytest.approx(quantile, abs=1e-3)


def test_an_interval_over_three_seeds_by_hand() -> None:
    # mean .8, standard deviation .1, half width 4.3027 * .1 / sqrt(3) = .2484
    found = mean([0.7, 0.8, 0.9])
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.5516, 1.0484), abs=1e-4)
    assert mean([0.7]).low is None, "one seed says nothing about others"


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    draw = random.Random(0)
    draws = ([draw.gauss(0.5, 0.1) for _ in range(3)] for _ in range(4000))
    covered = statistics.fmean(found.low <= 0.5 <= found.high for found in map(mean, draws))  # type: ignore[operator]
    assert covered == pytest.approx(0.95, abs=0.012)


def test_the_threshold_is_reached_between_two_evaluations() -> None:
    assert episodes_to(curve(0.5, 0.7, 0.9), 0.8) == pytest.approx(150)
    assert episodes_to(curve(0.5, 0.7, 0.9), 0.5) == 0
    assert episodes_to(curve(0.5, 0.9, 0.6, 0.9), 0.7) == pytest.approx(50), "the first time counts"
    assert episodes_to(curve(0.5, 0.7), 0.8) is None


def test_the_area_is_the_mean_height() -> None:
    assert area(curve(0.5, 0.7, 0.9), 200) == pytest.approx(0.7)
    assert area(curve(0.5, 0.7, 0.9), 150) == pytest.approx((0.6 * 100 + 0.75 * 50) / 150)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0.01, 0.99))
def test_areas_and_thresholds_stay_within_the_curve(success: list[float], threshold: float) -> None:
    one = curve(*success)
    assert min(success) - 1e-12 <= area(one, one.episodes[-1]) <= max(success) + 1e-12
    reached = episodes_to(one, threshold)
    assert (reached is None) == (max(success) < threshold)
    if reached:
        before, after = next((a, b) for a, b in pairwise(range(len(success))) if one.episodes[a] <= reached <= one.episodes[b])
        assert success[before] < threshold <= success[after] or success[before] >= threshold


def test_a_curve_counts_the_episodes_that_were_learned_from() -> None:
    config = load_config("number-search-tiny", ["rollout.groups_per_step=4", "rollout.group_size=8", "learner.minibatches=1"])
    records = [
        {"step": 0, "eval/success": 0.5},
        {"step": 1, "time/step_s": 2.0, "groups/failed": 1.0},
        {"step": 2, "time/step_s": 3.0, "eval/success": 0.6, "groups/failed": 0.0},
    ]
    found = read_curve(records, config)
    assert found == Curve(episodes=(0.0, 24.0 + 32.0), seconds=(0.0, 5.0), success=(0.5, 0.6))


def test_a_table_pairs_the_seeds_and_says_who_is_missing() -> None:
    curves = {
        "reinforce": {0: curve(0.5, 0.6), 1: curve(0.4, 0.5), 2: curve(0.3, 0.4)},
        "rloo": {0: curve(0.5, 0.9), 2: curve(0.3, 0.8)},
        "broken": {},
    }
    rows = table(curves, threshold=0.85)
    assert [row.variant for row in rows] == ["reinforce", "rloo"]
    first, second = rows
    assert first.difference is None and first.episodes_to is None and first.reached == 0
    assert second.difference is not None and second.difference.value == pytest.approx(0.35)  # .9 - .6 and .8 - .4
    half = 12.7062 * statistics.stdev([0.3, 0.4]) / math.sqrt(2)
    assert second.difference.high == pytest.approx(0.35 + half)
    assert (second.seeds, second.reached) == (2, 1) and second.episodes_to is not None
    assert second.episodes_to.value == pytest.approx(87.5)

    head, *body = cells(rows, 0.85)
    assert head[-1] == "vs reinforce" and body[1][2] == "0.400" and body[1][5] == "87.5 (1)"
    assert all(len(row) == len(head) for row in body)
    text = markdown("title", rows, 0.85, {"runs/x": "out of memory"}, "comparison.png")
    assert "| rloo | 2 |" in text and "- failed: runs/x: out of memory" in text and "](comparison.png)" in text


def test_the_line_of_a_variant_is_the_mean_of_its_seeds() -> None:
    points = over_seeds([curve(0.5, 0.7), curve(0.3, 0.5, 0.9)])
    assert [(at, height.value) for at, _, height in points] == [(0.0, pytest.approx(0.4)), (100.0, pytest.approx(0.6))]
