"""Crafting as it is played: rules, replies, shaping, players, determinism."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.check import check_env
from envs.contract import End, Step, Task
from envs.crafting import SPEC, Crafting, CraftingParams, hint
from envs.crafting_state import Refusal, State
from envs.crafting_tasks import LEVELS, read
from envs.transcript import Transcript, episode, play

ROOT = Path(__file__).parents[2]

BENCH: dict[str, Any] = {
    "recipes": [
        ["m0_i0", "gather", 2, [], None],
        ["m0_i1", "gather", 1, [], None],
        ["m1_i0", "craft", 1, [["m0_i0", 2]], None],
        ["m2_i0", "craft", 1, [["m0_i1", 1], ["m0_i0", 2]], "m1_i0"],
    ],
    "goal": "m2_i0",
    "count": 1,
    "stock": {},
    "optimal": 5,
    "turns": 14,
    "grammar": "line",
    "asked": False,
    "ready": False,
    "shaping": 0.0,
}
"""A bench of two logs, and at the bench a thing of a stone and two logs, logs found two at a time: five actions."""


def bench(**changes: Any) -> Task:
    return Task(id="bench", env="crafting", split="train", level="L3", seed=0, data={**BENCH, **changes})


def steps_of(task: Task, *texts: str) -> list[Step]:
    env = Crafting(task)
    env.start()
    return [env.step(text) for text in texts]


def by(player: str, task: Task, seed: int = 0) -> Transcript:
    params = CraftingParams(recipes="asked" if task.data["asked"] else "shown")
    return play(SPEC, params, task, SPEC.players[player](task, seed).act)


SOLUTION = ("gather m0_i0", "craft m1_i0", "gather m0_i0", "gather m0_i1", "craft m2_i0")


def test_an_episode_in_the_line_grammar():
    (prompt,) = Crafting(bench()).start()
    assert prompt.content == (
        "goal 1 m2_i0 ;\n"
        "turns 14 ;\n"
        "craft m2_i0 x1 : 1 m0_i1 2 m0_i0 @ m1_i0 ;\n"
        "craft m1_i0 x1 : 2 m0_i0 ;\n"
        "gather m0_i1 x1 ;\n"
        "gather m0_i0 x2 ;\n"
        "have nothing ;"
    )
    steps = steps_of(bench(), *SOLUTION)
    assert [step.observation for step in steps] == [
        "have 2 m0_i0 ;",
        "have 1 m1_i0 ;",
        "have 2 m0_i0 1 m1_i0 ;",
        "have 2 m0_i0 1 m0_i1 1 m1_i0 ;",
        "have 1 m1_i0 1 m2_i0 ;\ngoal reached",
    ]
    assert [step.reward for step in steps] == [0, 0, 0, 0, 1.0] and steps[-1].end is End.SOLVED


def test_an_episode_of_tool_calls():
    names = {"m0_i0": "oak log", "m0_i1": "field stone", "m1_i0": "workbench", "m2_i0": "oak axe"}
    task = bench(grammar="json", names=names)
    (prompt,) = Crafting(task).start()
    assert '"name": "craft", "arguments": {"item": "oak axe"}' in prompt.content and "Get 1 oak axe in 14 turns" in prompt.content
    steps = steps_of(
        task,
        '{"name": "gather", "arguments": {"item": "oak log"}}',
        '{"name": "craft", "arguments": {"item": "oak axe"}}',
        '{"name": "view_inventory", "arguments": {}}',
        '{"name": "get_info", "arguments": {"item": "oak axe"}}',
        '{"name": "mine", "arguments": {"item": "oak log"}}',
        '{"name": "craft", "arguments": {"item": "oak door"}}',
    )
    assert [json.loads(step.observation) for step in steps] == [
        {"ok": True, "inventory": {"oak log": 2}},
        {"ok": False, "error": "missing", "need": {"field stone": 1, "workbench": 1}, "have": {"field stone": 0, "workbench": 0}},
        {"ok": True, "inventory": {"oak log": 2}},
        {"item": "oak axe", "tool": "craft", "makes": 1, "uses": {"field stone": 1, "oak log": 2}, "needs": "workbench"},
        {"ok": False, "error": "wrong_verb", "use": "gather"},
        {"ok": False, "error": "unknown_item"},
    ]
    assert [step.valid for step in steps] == [True, False, True, True, False, False]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("craft m1_i0", "no , need 2 have 0 m0_i0 ;"),
        ("craft m2_i0", "no , need 1 have 0 m0_i1 ; need 2 have 0 m0_i0 ; need 1 have 0 m1_i0 ;"),
        ("smelt m1_i0", "no , craft it ;"),
        ("craft m9_i9", "no such item ;"),
        ("info m9_i9", "no such item ;"),
        ("craft", "That is no item name; write one action such as craft m1_i2 and nothing else."),
    ],
)
def test_a_refused_action_says_why_costs_a_turn_and_changes_nothing(text, reply):
    env = Crafting(bench(turns=2))
    env.start()
    before = env.view()
    step = env.step(text)
    assert (step.observation, step.valid, step.end, step.reward) == (reply, False, None, 0.0)
    assert env.view() == before.replace("2 turns left", "1 turns left")
    assert env.step(text).end is End.OUT_OF_TURNS


def test_the_last_allowed_action_counts():
    assert steps_of(bench(turns=5), *SOLUTION)[-1].end is End.SOLVED
    late = steps_of(bench(turns=4), *SOLUTION[:4])[-1]
    assert late.end is End.OUT_OF_TURNS and late.observation.endswith("\nout of turns")


@pytest.mark.parametrize("between", ["stock", "gather m0_i0", "craft m2_i0", "craft m9_i9"])
def test_three_unparsable_actions_in_a_row_end_the_episode(between):
    assert [step.end for step in steps_of(bench(), "", "", "")] == [None, None, End.INVALID_ACTIONS]
    assert [step.end for step in steps_of(bench(), "", "", between, "", "", "")][-2:] == [None, End.INVALID_ACTIONS]


def test_a_dead_end_is_told_from_running_out_of_turns():
    supply = {"m0_i0": 2, "m0_i1": 1}
    assert steps_of(bench(supply=supply), *SOLUTION)[-1].end is End.SOLVED
    steps = steps_of(bench(supply=supply), "gather m0_i0", "gather m0_i0", "craft m1_i0", "gather m0_i0")
    assert [step.observation for step in steps] == [
        "have 2 m0_i0 ; left 1 ;",
        "have 4 m0_i0 ; left 0 ;",
        "have 2 m0_i0 1 m1_i0 ;",
        "no , none left ;",
    ]
    wasted = steps_of(bench(supply=supply), "gather m0_i0", "craft m1_i0", "gather m0_i0", "craft m1_i0")[-1]
    assert wasted.end is End.FAILED and "dead end" in wasted.observation


def test_recipes_are_asked_for_one_at_a_time():
    task = bench(asked=True)
    env = Crafting(task)
    (prompt,) = env.start()
    assert prompt.content == "goal 1 m2_i0 ;\nturns 14 ;\nhave nothing ;" and "craft m2_i0" not in env.view()
    assert env.step("info m2_i0").observation == "craft m2_i0 x1 : 1 m0_i1 2 m0_i0 @ m1_i0 ;"
    assert "craft m2_i0" in env.view() and env.summary()["lookups"] == 1
    assert by("plausible", task).actions[:4] == ("info m2_i0", "info m1_i0", "info m0_i1", "info m0_i0")


def test_replies_say_what_is_ready_and_how_much_of_it_there_is():
    env = Crafting(bench(ready=True))
    (prompt,) = env.start()
    assert prompt.content.endswith("\nhave nothing ;\ncan 0 gather m0_i0 0 gather m0_i1 ;")
    status = "have 2 m0_i0 ;\ncan 2 gather m0_i0 0 gather m0_i1 0 craft m1_i0 ;"
    assert env.step("gather m0_i0").observation == env.step("stock").observation == status
    assert env.step("craft m2_i0").observation == f"no , need 1 have 0 m0_i1 ; need 1 have 0 m1_i0 ;\n{status}"
    called = Crafting(bench(ready=True, grammar="json"))
    called.start()
    reply = json.loads(called.step('{"name": "gather", "arguments": {"item": "m0_i0"}}').observation)
    assert reply == {"ok": True, "inventory": {"m0_i0": 2}, "can": [["gather", "m0_i0"], ["gather", "m0_i1"], ["craft", "m1_i0"]]}


def test_no_step_after_the_end():
    env = Crafting(bench(turns=1))
    env.start()
    env.step("stock")
    with pytest.raises(AssertionError):
        env.step("stock")


def test_the_view_shows_what_can_be_done():
    env = Crafting(bench())
    env.start()
    env.step("gather m0_i0")
    assert env.view().splitlines() == [
        "Goal: 1 m2_i0   (0 made, 13 turns left; > can be done now)",
        "   craft m2_i0      0/1 m0_i1, 2/2 m0_i0, needs m1_i0",
        " > craft m1_i0      2/2 m0_i0",
        " > gather m0_i1",
        " > gather m0_i0 x2",
        "Bag:  2 m0_i0",
    ]


@settings(deadline=None)
@given(st.integers(0, 200), st.data())
def test_an_action_makes_and_uses_what_its_recipe_says_and_nothing_else(seed, data):
    task = next(SPEC.tasks(CraftingParams(distractors=4), "train", seed))
    state = read(task)[0]
    items = [*state.by_item, "m9_i9"]
    for verb, item in data.draw(st.lists(st.tuples(st.sampled_from(["gather", "mine", "craft", "smelt"]), st.sampled_from(items)))):
        before = {name: state.stock.get(name, 0) for name in state.by_item}
        done = state.execute(verb, item)
        after = {name: state.stock.get(name, 0) for name in state.by_item}
        if isinstance(done, Refusal):
            assert after == before
        else:
            used = dict(done.inputs)
            expected = {name: count - used.get(name, 0) + done.makes * (name == item) for name, count in before.items()}
            assert after == expected and min(after.values()) >= 0
            assert done.needs is None or before[done.needs] > 0


@settings(deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["oracle", "plausible", "random", "greedy"]), st.sampled_from([0.1, 0.37, 0.5]))
def test_shaping_adds_up_and_no_failure_outranks_a_success(seed, player, shaping):
    task = next(SPEC.tasks(CraftingParams(shaping=shaping), "train", seed))
    transcript = by(player, task, seed)
    rewards = [step.reward for step in transcript.steps]
    sums = [sum(rewards[:length]) for length in range(1, len(rewards) + 1)]
    if transcript.solved:
        assert sum(rewards) == 1.0
        sums.pop()
    assert all(0 <= total <= shaping for total in sums)
    progress = transcript.summary["progress"]
    assert transcript.solved or sums[-1] == pytest.approx(shaping * progress, abs=1 / 1024)


def test_without_shaping_a_failure_scores_nothing():
    for task in islice(SPEC.tasks(CraftingParams(levels="L4"), "train", 0), 20):
        transcript = by("random", task)
        assert sum(step.reward for step in transcript.steps) == float(transcript.solved)


BANDS = {
    "L1": {"plausible": (0.76, 0.92), "random": (0.48, 0.70), "greedy": (0.95, 1.0)},
    "L2": {"plausible": (0.62, 0.82), "random": (0.28, 0.52), "greedy": (0.88, 1.0)},
    "L3": {"plausible": (0.46, 0.68), "random": (0.10, 0.32), "greedy": (0.68, 0.92)},
    "L4": {"plausible": (0.12, 0.34), "random": (0.02, 0.16), "greedy": (0.32, 0.62)},
    "L5": {"plausible": (0.00, 0.12), "random": (0.00, 0.06), "greedy": (0.02, 0.24)},
}
"""Success on 150 tasks of each level, as (low, high): the measured rate and about three standard errors."""


@pytest.mark.parametrize("level", BANDS)
def test_the_players_succeed_as_often_as_recorded(level):
    drawn = list(islice(SPEC.tasks(CraftingParams(levels=level, skin="opaque"), "train", 11), 150))
    for player, (low, high) in {**BANDS[level], "oracle": (1.0, 1.0)}.items():
        rate = sum(by(player, task, seed).solved for seed, task in enumerate(drawn)) / len(drawn)
        assert low <= rate <= high, f"{player}: {rate}"


@pytest.mark.parametrize(
    "changes", [{"grammar": "json", "recipes": "asked"}, {"slack": 1.5, "shaping": 0.5}, {"skin": "opaque", "ready": True}]
)
def test_other_settings_keep_the_contract(changes):
    assert check_env(SPEC, params=CraftingParams(**changes), episodes=10) == []


def test_a_hundred_episodes_at_once_are_the_same_as_each_alone():
    params = CraftingParams(slack=2.0)
    drawn = list(islice(SPEC.tasks(params, "train", 2), 100))
    players = [SPEC.players["plausible"](task, seed) for seed, task in enumerate(drawn)]
    running = {number: episode(SPEC, params, task, player.act) for number, (task, player) in enumerate(zip(drawn, players, strict=True))}
    latest: dict[int, Transcript] = {}
    order = Random(0)
    while running:
        number = order.choice(sorted(running))
        transcript = next(running[number], None)
        if transcript is None:
            del running[number]
        else:
            latest[number] = transcript
    assert [latest[number] for number in range(100)] == [by("plausible", task, seed) for seed, task in enumerate(drawn)]


def shuffled(value: Any, random: Random) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key], random) for key in random.sample(sorted(value), len(value))}
    return value


def test_the_order_in_which_a_task_was_written_does_not_matter():
    random = Random(0)
    for task in islice(SPEC.tasks(CraftingParams(slack=2.0), "train", 0), 30):
        data = shuffled(dict(task.data), random)
        data["recipes"] = random.sample(data["recipes"], len(data["recipes"]))
        other = Task(id=task.id, env=task.env, split=task.split, level=task.level, seed=task.seed, data=data)
        assert by("plausible", other) == by("plausible", task)


def transcript_hash() -> str:
    lines = []
    for grammar in ("line", "json"):
        for task in islice(SPEC.tasks(CraftingParams(grammar=grammar, slack=2.0), "train", 1), 20):
            lines.append(json.dumps(task.to_json()))
            lines += [str(by(player, task, 3)) for player in sorted(SPEC.players)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_transcripts_do_not_depend_on_the_hash_seed(hash_seed):
    program = "from tests.envs.test_crafting import transcript_hash\nprint(transcript_hash())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == transcript_hash()


def test_the_hint_is_a_true_quantity():
    assert hint(bench()) == "Hint: gather m0_i0 2 times."
    for task in islice(SPEC.tasks(CraftingParams(), "train", 0), 20):
        transcript = by("oracle", task)
        sentence = hint(task).removeprefix("Hint: ")
        action, times = sentence.rsplit(" ", 2)[0], int(sentence.split()[-2])
        assert transcript.actions.count(action) == times == max(map(transcript.actions.count, transcript.actions))


def test_levels_need_more_and_more_turns():
    assert [SPEC.max_turns(CraftingParams(levels=level)) for level in LEVELS] == [8, 12, 20, 36, 84]
    assert SPEC.max_turns(CraftingParams(levels="L3", recipes="asked")) == 36


def test_the_state_says_what_is_ready():
    state = State(recipes=read(bench())[0].recipes, goal="m2_i0", count=1, stock={"m0_i0": 2})
    assert [recipe.item for recipe in state.ready()] == ["m0_i0", "m0_i1", "m1_i0"]
