"""The report of an environment: rows that can be counted by hand, tasks of one level, and what is refused."""

from itertools import islice

import pytest

from envs.crafting import SPEC as CRAFTING
from envs.errors import InputError
from envs.number_search import SPEC as NUMBERS
from envs.survey import draw_tasks, stream, survey


def test_the_oracle_on_all_secrets_is_the_optimum() -> None:
    tasks = draw_tasks(NUMBERS, NUMBERS.params(), split="eval", seed=0, count=100)
    assert len(tasks) == 16
    found = survey(NUMBERS, tasks, ["oracle"], 0.0)
    (row,) = found.rows
    assert (row.player, row.level, row.episodes, row.success) == ("oracle", "16-4", 16, 0.9375)
    # Binary search: 1, 2, 4 and 8 secrets are found by the first to fourth guess, one is not found in four.
    assert row.turns == row.optimal == (1 + 2 * 2 + 4 * 3 + 8 * 4 + 4) / 16
    assert row.ends == {"solved": 15, "out_of_turns": 1}
    assert found.steps_per_s > 0


def test_levels_are_rows_and_the_shortest_length_is_that_of_the_level() -> None:
    tasks = draw_tasks(CRAFTING, CRAFTING.params(), split="eval", seed=0, count=20)
    rows = survey(CRAFTING, tasks, ["random", "oracle"], 0.0).rows
    levels, players = ("L1", "L2", "L3", "L4", "L5"), ("random", "oracle")
    assert [(row.level, row.player) for row in rows] == [(level, name) for level in levels for name in players]
    assert all(row.episodes == 4 for row in rows)
    bands = {"L1": (1, 2), "L2": (3, 4), "L3": (5, 8), "L4": (9, 16), "L5": (17, 40)}
    assert all(bands[row.level][0] <= row.optimal <= bands[row.level][1] for row in rows)
    assert all(row.success == 1 and row.turns == row.optimal for row in rows if row.player == "oracle")


def test_tasks_of_one_level() -> None:
    params = CRAFTING.params()
    chosen = list(islice(stream(CRAFTING, params, split="train", seed=3, level="L2"), 5))
    every = islice(stream(CRAFTING, params, split="train", seed=3, level=None), 200)
    assert chosen == [task for task in every if task.level == "L2"][:5]
    with pytest.raises(InputError, match="no task of level 'L6' in its split eval: expected one of L1"):
        draw_tasks(CRAFTING, params, split="eval", seed=0, count=1, level="L6")
    with pytest.raises(InputError, match="did you mean 'train'"):
        draw_tasks(CRAFTING, params, split="trian", seed=0, count=1)
