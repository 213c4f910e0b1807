"""Crafting worlds: the solver against exhaustive search, levels, budgets, and splits that share nothing."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
from pydantic import ValidationError

from envs.crafting import SPEC
from envs.crafting_state import State
from envs.crafting_tasks import LEVELS, CraftingParams, draw, read, tasks
from envs.crafting_world import closure, depth, generate, tier
from envs.errors import InputError
from envs.transcript import play

HELD_OUT = ("worlds", "goals", "depth")


def neighbours(state: State) -> Iterator[State]:
    for recipe in state.ready():
        after = State(recipes=state.recipes, goal=state.goal, count=state.count, stock=state.stock, supply=state.supply)
        after.execute(recipe.verb, recipe.item)
        yield after


def shortest(state: State) -> int | None:
    """Breadth-first search over everything that can be done: the fewest actions to the goal; None if no actions reach it."""
    frontier, actions, seen = [state], 0, {(tuple(state.held()), tuple(state.supply.items()))}
    while frontier:
        if any(one.reached for one in frontier):
            return actions
        following = []
        for one in frontier:
            for after in neighbours(one):
                key = (tuple(after.held()), tuple(after.supply.items()))
                if key not in seen:
                    seen.add(key)
                    following.append(after)
        frontier, actions = following, actions + 1
    return None


def small_tasks(count: int, most: int, **settings: object) -> Iterator[State]:
    stream = tasks(CraftingParams.model_validate({"levels": {"L1": 1, "L2": 1, "L3": 1}, "distractors": 1, **settings}), "train", 0)
    small = (read(task)[0] for task in stream if task.data["optimal"] <= most)
    return islice(small, count)


def test_the_solver_is_optimal():
    """Against breadth-first search on 500 tasks, each from its start and from where a few random actions lead."""
    random = Random(0)
    for state in small_tasks(500, most=5):
        for _ in range(random.randrange(3)):
            recipe = random.choice(state.ready())
            state.execute(recipe.verb, recipe.item)
        assert sum(state.plan().values()) == shortest(state)


def test_a_dead_end_is_where_no_plan_of_any_length_is_left():
    """Finite sources make the set of reachable states finite: search it all, after random actions that may have been mistakes."""
    random, dead = Random(1), 0
    for state in small_tasks(200, most=5, slack=1.0, distractors=4):
        for _ in range(random.randrange(8)):
            if state.ready() and not state.reached:
                recipe = random.choice(state.ready())
                state.execute(recipe.verb, recipe.item)
        assert state.is_solvable() is (shortest(state) is not None)
        dead += not state.is_solvable()
    assert 20 < dead < 180, "the search has to see both"


def test_a_world_is_a_graph_that_can_be_climbed():
    for number in range(200):
        world = generate(number)
        known: set[str] = set()
        for recipe in world.recipes:
            asked = recipe.asks_for()
            assert known.issuperset(asked)
            assert tier(recipe.item) == 1 + max(map(tier, asked), default=-1)
            assert not world.apparatus.intersection(item for item, _ in recipe.inputs), "a station or tool is never used up"
            assert (not recipe.inputs) is (recipe.verb in {"gather", "mine"})
            known.add(recipe.item)
        assert len(set(world.plain.values())) == len(world.recipes) == len(known)
        assert generate(number) == world


@pytest.mark.parametrize("held_out", HELD_OUT)
@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("count", [100, pytest.param(1_700, marks=pytest.mark.slow)])
def test_every_task_is_solvable_within_its_turns(held_out, split, count):
    params = CraftingParams(held_out=held_out, eval_per_level=count // 5, slack=1.0)
    seen = set()
    for task in islice(tasks(params, split, 7), count):
        low, high = LEVELS[task.level]
        assert low <= task.data["optimal"] <= high
        assert task.data["turns"] == 2 * task.data["optimal"] + 4 <= SPEC.max_turns(params)
        transcript = play(SPEC, params, task, SPEC.players["oracle"](task, 0).act)
        assert transcript.solved and len(transcript.steps) == task.data["optimal"]
        seen.add(task.level)
    assert seen == set(LEVELS)


def test_recipes_that_must_be_asked_for_are_in_the_budget():
    params = CraftingParams(recipes="asked", levels="L3")
    for task in islice(tasks(params, "train", 0), 40):
        assert task.data["turns"] == 2 * task.data["optimal"] + 4 <= SPEC.max_turns(params)
        transcript = play(SPEC, params, task, SPEC.players["oracle"](task, 0).act)
        assert transcript.solved and len(transcript.steps) == task.data["optimal"]
        assert 5 <= len(transcript.steps) - transcript.summary["lookups"] <= 8


def parts(params: CraftingParams, split: str, count: int) -> tuple[set[str], set[str]]:
    found = [task.id.split("/") for task in islice(tasks(params, split, 0), count)]
    return {world for _, _, world, _, _ in found}, {goal for *_, goal, _ in found}


@pytest.mark.parametrize("held_out", HELD_OUT)
@pytest.mark.parametrize("worlds", [1000, 10_000_000])
def test_the_splits_share_no_goal_with_its_recipes(held_out, worlds):
    """A goal's key is the hash of everything it can depend on: no training task has an evaluation task's goal in it, in any world."""
    params = CraftingParams(held_out=held_out, worlds=worlds, levels="L3", eval_per_level=40)
    train_worlds, train_goals = parts(params, "train", 400)
    eval_worlds, eval_goals = parts(params, "eval", 40)
    assert len(train_goals) > 200 and len(eval_goals) > 20
    assert not train_goals & eval_goals
    same_worlds = held_out == "goals" and worlds == 1000
    assert bool(train_worlds & eval_worlds) is same_worlds


def test_depth_is_extrapolated():
    params = CraftingParams(held_out="depth", levels={"L3": 1, "L4": 1})
    deep = {
        split: {depth(state.recipes, state.goal) for task in islice(tasks(params, split, 0), 40) for state in [read(task)[0]]}
        for split in ("train", "eval")
    }
    assert max(deep["train"]) == 3 and min(deep["eval"]) == 4


def test_the_mixture_is_as_the_weights_say():
    stream = islice(tasks(CraftingParams(levels={"L1": 3, "L2": 1, "L5": 0}), "train", 0), 200)
    counts = dict.fromkeys(LEVELS, 0)
    for task in stream:
        counts[task.level] += 1
    assert counts["L1"] + counts["L2"] == 200 and counts["L1"] == pytest.approx(150, abs=4 * (200 * 3 / 16) ** 0.5)


def test_evaluation_has_each_level_in_turn_and_is_the_same_for_every_seed():
    params = CraftingParams(levels={"L1": 1, "L3": 0}, eval_per_level=5)
    held_out = list(tasks(params, "eval", 3))
    assert [task.level for task in held_out] == ["L1", "L3"] * 5
    assert held_out == list(tasks(params, "eval", 4)) and len({task.id for task in held_out}) == 10


def test_the_skins_dress_the_same_graph():
    plain, opaque = (list(islice(tasks(CraftingParams(skin=skin), "train", 5), 20)) for skin in ("plain", "opaque"))
    for dressed, bare in zip(plain, opaque, strict=True):
        assert {**dressed.data, "names": None} == {**bare.data, "names": None}


@pytest.mark.parametrize("count", [0, 1, 4])
def test_distractors_can_be_made_before_the_goal(count):
    for task in islice(tasks(CraftingParams(distractors=count), "train", 0), 40):
        state, _ = read(task)
        needed = {recipe.item for recipe in closure(state.recipes, state.goal)}
        extra = [recipe for recipe in state.recipes if recipe.item not in needed]
        assert len(extra) <= count and not any(state.goal in recipe.asks_for() for recipe in extra)
        assert count == 0 or extra


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": "L6"}, "there is no level 'L6': expected one of L1"),
        ({"levels": {"L1": -1}}, "the weight of L1 is -1.0"),
        ({"levels": {"L1": 0}}, "no level a weight above 0"),
        ({"levels": {}}, "no level a weight above 0"),
        ({"ready": True, "recipes": "asked"}, "ready=true tells what recipes=asked hides"),
        ({"shaping": 0.6}, "less than or equal to 0.5"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        CraftingParams(**settings)


def test_wrong_tasks_are_refused():
    with pytest.raises(InputError, match="no split 'test'"):
        tasks(CraftingParams(), "test", 0)
    task = draw(CraftingParams(), "train", "L2", Random(0))
    wrong = ({}, {**task.data, "stock": {"m9_i9": 1}}, {**task.data, "recipes": task.data["recipes"][1:]}, {**task.data, "turns": 0})
    for data in wrong:
        with pytest.raises(InputError, match="its data cannot be read"):
            read(type(task)(id="x", env="crafting", split="train", level="L2", seed=0, data=data))
