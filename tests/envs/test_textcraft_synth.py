"""TextCraft-Synth as it is played: the package's plans, splits, turns, the grade, players, determinism."""

import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envs.check import check_env
from envs.contract import End, Step, Task
from envs.errors import InputError
from envs.textcraft_synth import PLAYERS, SPEC, TextcraftSynth, TextcraftSynthParams, best_success, max_turns, tasks
from envs.textcraft_synth_actions import finish, parse
from envs.textcraft_synth_world import FILES, LEVELS, VERSION, rows, world
from envs.tool_call import ToolCall, write_tool_call
from envs.transcript import Transcript, play

ROOT = Path(__file__).parents[2]
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("platoon_textcraft") is None, reason="needs the package platoon-textcraft (make textcraft)"
)
ALL = TextcraftSynthParams(eval_per_level=213)
INFO = '{"name": "view_inventory", "arguments": {}}'


def easy(number: int = 0, **changes: Any) -> Task:
    task = next(islice(tasks(TextcraftSynthParams(difficulties="easy"), "eval", 0), number, None))
    return Task(**{**task.to_json(), "data": {**task.data, **changes}})


def by(player: str, task: Task, seed: int = 0) -> Transcript:
    return play(SPEC, TextcraftSynthParams(), task, PLAYERS[player](task, seed).act)


def steps_of(task: Task, *texts: str) -> list[Step]:
    env = TextcraftSynth(task)
    env.start()
    return [env.step(text) for text in texts]


def gold_plans() -> list[tuple[Task, list[str]]]:
    """Every task with the plan that the package stores for it, as calls. A step's `target[1]` counts executions, not what they make."""
    drawn = {task.id: task for task in tasks(ALL, "eval", 0)} | {task.id: task for level in LEVELS for task in one_pass(level)}
    plans = []
    for name in FILES.values():
        for line in importlib.resources.files("platoon_textcraft").joinpath("data", name).read_text().splitlines():
            row = json.loads(line)
            calls = [
                write_tool_call("craft", {"ingredients": step["ingredients"], "target": [step["target"][0], step["result_count"]]})
                for step in row["misc"]["gold_trajectory"]
            ]
            plans.append((drawn[row["id"]], [*calls, finish()]))
    return plans


def one_pass(level: str) -> list[Task]:
    count = sum(row.level == level for row in rows("train"))
    return list(islice(tasks(TextcraftSynthParams(difficulties=level), "train", 3), count))


def made(texts: list[str]) -> dict[str, int]:
    """How many of each item the calls make; every item is made in one call."""
    calls = [call for call in map(parse, texts) if isinstance(call, ToolCall) and call.name == "craft"]
    amounts = dict(call.arguments["target"] for call in calls)
    assert len(amounts) == len(calls)
    return amounts


def replay_gold(plans: list[tuple[Task, list[str]]]) -> None:
    for task, texts in plans:
        *before, last = steps_of(task, *texts)
        assert all(step.valid and step.end is None and step.reward == 0 for step in before), task.id
        assert (last.end, last.reward) == (End.SOLVED, 1.0), task.id
        # The stored plans make as many items, and often more of one than is needed.
        ours, stored = (made(calls) for calls in (by("oracle", task).actions, texts))
        assert ours.keys() == stored.keys() and all(ours[item] <= stored[item] for item in ours), task.id
        assert task.data["turns"] == 2 * len(before) + 4


@needs_package
def test_a_sample_of_the_stored_plans_succeeds_and_none_is_shorter_than_the_oracles():
    replay_gold(gold_plans()[::97])


@pytest.mark.slow
@needs_package
def test_all_stored_plans_succeed_and_none_is_shorter_than_the_oracles():
    plans = gold_plans()
    assert len(plans) == 3_154
    replay_gold(plans)


@needs_package
def test_the_splits_are_those_of_the_package():
    held_out = list(tasks(ALL, "eval", 0))
    assert Counter(task.level for task in held_out) == {"easy": 147, "medium": 213, "hard": 136, "extreme": 136}
    trained = {level: one_pass(level) for level in LEVELS}
    assert {level: len({task.id for task in drawn}) for level, drawn in trained.items()} == {
        "easy": 588,
        "medium": 852,
        "hard": 544,
        "extreme": 538,
    }
    goals = {goal for drawn in trained.values() for task in drawn for goal in task.data["target"]}
    assert goals.isdisjoint(goal for task in held_out for goal in task.data["target"])
    assert [task.level for task in islice(tasks(TextcraftSynthParams(), "eval", 0), 5)] == ["easy", "medium", "hard", "extreme", "easy"]


@needs_package
def test_difficulties_are_drawn_by_their_weights_and_seeds():
    params = TextcraftSynthParams(difficulties={"hard": 1, "easy": 3, "medium": 0})
    drawn = list(islice(tasks(params, "train", 0), 400))
    assert set(Counter(task.level for task in drawn)) == {"easy", "hard"} and 60 < sum(task.level == "hard" for task in drawn) < 140
    assert {task.level for task in tasks(params, "eval", 0)} == {"easy", "medium", "hard"}
    assert [task.id for task in islice(tasks(params, "train", 1), 400)] != [task.id for task in drawn]


@needs_package
def test_the_stored_turns_are_too_few_for_most_hard_tasks():
    def stored(level):
        return TextcraftSynthParams(difficulties=level, steps="stored", eval_per_level=213)

    assert [round(best_success(stored(level)) * count) for level, count in zip(LEVELS, (147, 213, 136, 136), strict=True)] == [
        147,
        213,
        52,
        0,
    ]
    assert max_turns(stored("hard")) == 75 and best_success(ALL) == 1
    assert [max_turns(TextcraftSynthParams(difficulties=level)) for level in LEVELS] == [24, 134, 286, 1102]


@needs_package
def test_the_prompt_has_the_rules_the_tools_the_goal_and_the_inventory():
    system, user = TextcraftSynth(easy()).start()
    assert (system.role, user.role) == ("system", "user")
    assert user.content == 'Goal: gain 3 t7_i3\nInventory: {"raw_t1": 14, "raw_t0": 15, "raw_t5": 4}\nTurns: 16'
    example = system.content[system.content.index("<tool_call>") : system.content.index("</tool_call>") + len("</tool_call>")]
    assert isinstance(parse(example), ToolCall)
    assert all(f"\n{tool}, with" in system.content for tool in ("craft", "get_info", "view_inventory", "finish"))


@needs_package
def test_the_last_turn_counts_and_a_goal_in_hand_without_finish_scores_nothing():
    texts = by("oracle", easy()).actions
    assert steps_of(easy(turns=len(texts)), *texts)[-1].end is End.SOLVED
    env = TextcraftSynth(easy(turns=len(texts) - 1))
    env.start()
    steps = [env.step(text) for text in texts[:-1]]
    assert (steps[-1].end, steps[-1].reward) == (End.OUT_OF_TURNS, 0.0) and steps[-1].observation.endswith("\nOut of turns.")
    summary = env.summary()
    assert (summary["reached"], summary["finished"], summary["progress"]) == (1, 0, 1)
    with pytest.raises(AssertionError):
        env.step(finish())


@needs_package
@pytest.mark.parametrize("message", ["", None])
def test_a_finish_without_a_message_or_without_the_goal_fails(message):
    *crafts, _ = by("oracle", easy()).actions
    empty = write_tool_call("finish", {} if message is None else {"message": message})
    assert (steps_of(easy(), *crafts, empty)[-1].end, steps_of(easy(), *crafts[:-1], finish())[-1].end) == (End.FAILED, End.FAILED)


@needs_package
def test_the_goal_is_what_is_gained_beyond_the_start():
    inventory = {**easy().data["inventory"], "t7_i3": 5}
    assert steps_of(easy(inventory=inventory), finish())[-1].end is End.FAILED
    assert by("oracle", easy(inventory=inventory)).solved


@needs_package
@pytest.mark.parametrize("between", [INFO, '{"name": "craft", "arguments": {"ingredients": 1, "target": 1}}'])
def test_three_unreadable_turns_in_a_row_end_the_episode(between):
    assert [step.end for step in steps_of(easy(), "", "", "")] == [None, None, End.INVALID_ACTIONS]
    assert [step.end for step in steps_of(easy(), "", "", between, "", "", "")][-2:] == [None, End.INVALID_ACTIONS]
    assert [step.end for step in steps_of(easy(turns=2), "", "")] == [None, End.OUT_OF_TURNS]


@needs_package
def test_the_summary_tells_what_a_craft_did_to_the_plan():
    env = TextcraftSynth(easy())
    env.start()
    stray = next(r for r in world().recipes if r.inputs == (("raw_t5", 1),) or r.inputs == (("raw_t5", 2),))
    craft = {"ingredients": dict(stray.inputs), "target": [stray.item, stray.makes]}
    assert env.step(write_tool_call("craft", craft)).valid
    env.step(write_tool_call("craft", {"ingredients": {"raw_t1": 99}, "target": ["t8_i1", 2]}))
    env.step(write_tool_call("craft", {"ingredients": {"raw_t1": 1}, "target": ["t8_i1", 2]}))
    env.step(write_tool_call("get_info", {"items": ["t7_i3"]}))
    env.step("?")
    expected = {"strays": 1, "refused": 1, "lookups": 1, "unparsable": 1, "dead_end": 0, "finished": 0, "reached": 0}
    assert env.summary() == {**expected, "progress": pytest.approx(1 / 7)}
    spent = TextcraftSynth(easy(inventory={"raw_t1": 2, "raw_t0": 3}))
    spent.start()
    assert spent.summary()["dead_end"] == 1


BANDS = {
    ("easy", "stored"): {"plausible": (0.88, 1.0), "random": (0.25, 0.53)},
    ("easy", "plan"): {"plausible": (0.66, 0.94), "random": (0.06, 0.26)},
    ("medium", "stored"): {"plausible": (0.20, 0.48), "random": (0.0, 0.06)},
    ("medium", "plan"): {"plausible": (0.0, 0.20), "random": (0.0, 0.04)},
}
"""Success on the first 100 evaluation tasks, as (low, high): the measured rate and about three standard errors."""


@needs_package
@pytest.mark.parametrize(("level", "steps"), BANDS)
def test_the_players_succeed_as_often_as_recorded(level, steps):
    drawn = list(tasks(TextcraftSynthParams(difficulties=level, steps=steps, eval_per_level=100), "eval", 0))
    for player, (low, high) in {**BANDS[level, steps], "oracle": (1.0, 1.0)}.items():
        rate = sum(by(player, task, seed).solved for seed, task in enumerate(drawn)) / len(drawn)
        print(level, steps, player, rate)
        assert low <= rate <= high, f"{player}: {rate}"


@needs_package
def test_stored_turns_keep_the_contract():
    assert check_env(SPEC, params=TextcraftSynthParams(difficulties="hard", steps="stored"), episodes=6) == []


def transcript_hash() -> str:
    lines = []
    for split in FILES:
        for task in islice(tasks(TextcraftSynthParams(), split, 1), 3):
            lines.append(json.dumps(task.to_json()))
            lines += [str(by(player, task, 3)) for player in sorted(PLAYERS)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@needs_package
@pytest.mark.parametrize("hash_seed", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_transcripts_do_not_depend_on_the_hash_seed_and_loading_leaves_the_global_random_alone(hash_seed):
    program = (
        "import random\nstate = random.getstate()\n"
        "from tests.envs.test_textcraft_synth import transcript_hash\nprint(transcript_hash())\n"
        "assert random.getstate() == state"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == transcript_hash()


@needs_package
def test_the_world_is_the_one_that_the_package_loads_by_itself():
    program = (
        "from platoon_textcraft.synth_recipe_loader import SynthRecipeLoader\n"
        "recipes = SynthRecipeLoader().recipes\n"
        "print(sorted((item, r.result_count, list(r.ingredients.items())) for item, (r,) in recipes.items()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = sorted((recipe.item, recipe.makes, list(recipe.inputs)) for recipe in world().recipes if recipe.inputs)
    assert done.stdout.strip() == str(ours) and len(ours) == 1_402 and len(world().recipes) == 1_452
    known: set[str] = set()
    for recipe in world().recipes:
        assert known.issuperset(recipe.asks_for())
        known.add(recipe.item)


@needs_package
@pytest.mark.parametrize(
    "changes",
    [
        {"turns": 0},
        {"target": {}},
        {"target": {"raw_t0": 1}},
        {"target": {"no_such": 1}},
        {"target": {"t7_i3": "3"}},
        {"inventory": {"raw_t0": 0}},
    ],
)
def test_a_task_that_is_none_is_refused(changes):
    with pytest.raises(InputError, match="take tasks from the environment's own stream"):
        TextcraftSynth(easy(**changes))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"difficulties": "hrd"}, "did you mean 'hard'"),
        ({"difficulties": {"hard": -1}}, "the weight of hard is -1.0"),
        ({"difficulties": {"hard": 0}}, "no difficulty a weight above 0"),
        ({"steps": "75"}, "'plan' or 'stored'"),
    ],
)
def test_wrong_settings_say_why(settings, why):
    with pytest.raises(ValidationError, match=why):
        TextcraftSynthParams(**settings)


def test_the_set_up_installs_the_version_whose_tasks_are_known():
    assert f"platoon-textcraft=={VERSION}\n" in (ROOT / "Makefile").read_text()


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    world.cache_clear()
    rows.cache_clear()

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    for version, problem in (
        (missing, "needs the package platoon-textcraft"),
        (lambda name: "0.2.0", "platoon-textcraft 0.2.0 is installed"),
    ):
        monkeypatch.setattr(importlib.metadata, "version", version)
        for ask in (lambda: next(tasks(TextcraftSynthParams(), "train", 0)), lambda: max_turns(TextcraftSynthParams()), world):
            with pytest.raises(InputError) as error:
                ask()
            assert problem in str(error.value)
            assert "pip install --no-deps --ignore-requires-python platoon-textcraft==0.3.0" in str(error.value)
