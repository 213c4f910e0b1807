"""The curriculum: stated counts, the climb, the band, on learners whose success is known; the same draws again after a restore."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean

import pytest

from cluster.config import RunConfig
from cluster.curriculum.choice import share_due
from cluster.curriculum.stream import TaskStream
from cluster.load_config import load_config, parse_config
from cluster.prepare import train_tasks
from envs.contract import End, Task
from envs.errors import InputError
from rollout.types import Group
from tests.cluster.episodes import trajectory

CRAFTING = ("env.name=crafting", "env.params={}", "rollout.groups_per_step=8", "rollout.group_size=8")
COUNTS = ("curriculum.counts={L1: 1, L2: 2, L4: 5}",)
THRESHOLD = ("curriculum.kind=threshold", "curriculum.window=12", "curriculum.keep=0.25")
BAND = ("curriculum.kind=band",)
Success = Callable[[Task], float]


def config_of(*overrides: str) -> RunConfig:
    return load_config("number-search-tiny", overrides)


def played(task: Task, solved: Sequence[bool]) -> Group:
    """A group of the task whose members are solved or not, as said."""
    members = (trajectory(group=0, member=member, reward=float(won)) for member, won in enumerate(solved))
    ends = (End.SOLVED if won else End.FAILED for won in solved)
    return Group(trajectories=tuple(replace(m, task=task, end=end) for m, end in zip(members, ends, strict=True)))


class Learner:
    """Plays groups of 8 with a success that is a function of the task, which a test may change at any time."""

    def __init__(self, success: Success, seed: int = 0) -> None:
        self.success, self._random = success, Random(seed)

    def play(self, tasks: Sequence[Task]) -> list[Group]:
        return [played(task, [self._random.random() < self.success(task) for _ in range(8)]) for task in tasks]


def run(stream: TaskStream, learner: Learner, steps: int, lag: int = 0) -> list[list[Task]]:
    """The tasks of each step; the results of a step are observed after the tasks of the `lag` steps behind it were drawn."""
    drawn: list[list[Task]] = []
    in_flight: list[list[Group]] = []
    for _ in range(steps):
        drawn.append(stream.step())
        in_flight.append(learner.play(drawn[-1]))
        if len(in_flight) > lag:
            stream.observe(in_flight.pop(0))
    return drawn


def levels(tasks: Sequence[Task]) -> Counter[str]:
    return Counter(task.level for task in tasks)


@pytest.mark.parametrize("overrides", [(), CRAFTING])
def test_without_a_curriculum_the_environment_s_own_stream_is_played_in_its_order(overrides: tuple[str, ...]) -> None:
    config = config_of(*overrides)
    stream, size = TaskStream(config), config.rollout.groups_per_step
    first, second = stream.step(), stream.step()
    assert stream.observe([played(first[0], [True])]) == {}
    assert [*first, *second, stream.another(first[0])] == list(islice(train_tasks(config), 2 * size + 1))


def test_counts_are_exact_in_every_step_and_in_what_is_played_again() -> None:
    stream = TaskStream(config_of(*CRAFTING, *COUNTS))
    steps = [stream.step() for _ in range(6)]
    assert all(levels(tasks) == {"L1": 1, "L2": 2, "L4": 5} for tasks in steps)
    seen = {task.id for tasks in steps for task in tasks}
    assert len(seen) == 48 and not seen & {task.id for task in TaskStream(config_of(*CRAFTING, *COUNTS, "seed=1")).step()}
    assert len({tuple(task.level for task in tasks) for tasks in steps}) > 1, "no level always goes to the same generator"
    assert [stream.another(task).level for task in steps[0]] == [task.level for task in steps[0]]


def test_threshold_climbs_when_a_whole_window_is_passed_and_keeps_what_was_learned() -> None:
    stream = TaskStream(config_of(*CRAFTING, *THRESHOLD, "curriculum.levels=[L1, L3, L4]"))
    known = {"L1": 0.95, "L3": 0.5}
    learner = Learner(lambda task: known[task.level])
    assert [levels(tasks) for tasks in run(stream, learner, 2)] == [{"L1": 8}, {"L1": 8}]
    # 8 groups are no whole window of 12, 16 are more than one.
    later = run(stream, learner, 20)
    assert all(levels(tasks) == {"L1": 2, "L3": 6} for tasks in later), "a quarter is of the level before, the rest of the next one"
    assert stream.observe([]) == {"curriculum/level": 1.0, "curriculum/success": pytest.approx(0.5, abs=0.2)}
    known |= {"L3": 1.0, "L4": 0.0}
    run(stream, learner, 2)
    last = run(stream, learner, 6)
    assert all(levels(tasks) == {"L1": 1, "L3": 1, "L4": 6} for tasks in last), "the levels before in turn"


def test_threshold_counts_only_the_current_level_and_only_once() -> None:
    stream = TaskStream(config_of(*CRAFTING, *THRESHOLD))
    easy = next(train_tasks(config_of("env.name=crafting", "env.params={levels: L1}")))
    solved = [played(easy, [True] * 8)]
    assert stream.observe(solved * 11)["curriculum/level"] == 0.0
    assert stream.observe(solved * 40)["curriculum/level"] == 1.0, "one level at a time"
    # What comes late from the level before says nothing of the new one.
    assert stream.observe(solved * 40) == {"curriculum/level": 1.0}


def test_band_plays_the_levels_that_are_solved_at_times_and_follows_the_learner() -> None:
    config = config_of(*CRAFTING, *BAND)
    stream = TaskStream(config)
    known = {"L1": 0.98, "L2": 0.6, "L3": 0.3, "L4": 0.01, "L5": 0.0}
    learner = Learner(lambda task: known[task.level])
    run(stream, learner, 15)
    settled = levels([task for tasks in run(stream, learner, 25) for task in tasks])
    assert settled["L2"] + settled["L3"] >= 0.8 * 200, "all but the share that explores"
    assert min(settled[level] for level in known) > 0, "which still plays every level"
    known |= {"L2": 0.97, "L3": 0.95, "L4": 0.4}
    run(stream, learner, 30)
    moved = levels([task for tasks in run(stream, learner, 20) for task in tasks])
    assert moved["L4"] > 0.7 * 160


def test_band_goes_by_task_where_there_is_one_level() -> None:
    # Of 16 numbers 4 are solved at times; without the band a quarter of the groups would be in it.
    config = config_of(*BAND, "rollout.group_size=8")
    learner = Learner(lambda task: {0: 0.5, 1: 1.0, 2: 0.0, 3: 1.0}[task.data["secret"] % 4])
    stream = TaskStream(config)
    run(stream, learner, 6)
    inside = [stream.observe(learner.play(stream.step()))["curriculum/in_band"] for _ in range(20)]
    assert fmean(inside) > 0.7
    everything = Learner(lambda task: 1.0)
    run(stream, everything, 4)
    assert len({task.id for task in run(stream, everything, 1)[0]}) > 8, "with nothing in the band the draws go on"


def test_band_prefers_the_nearest_level_when_none_is_in_the_band() -> None:
    stream = TaskStream(config_of(*CRAFTING, *BAND, "curriculum.levels=[L1, L5]", "curriculum.explore=0.125"))
    learner = Learner(lambda task: {"L1": 0.83, "L5": 0.0}[task.level])
    run(stream, learner, 12)
    assert levels([task for tasks in run(stream, learner, 10) for task in tasks])["L1"] >= 0.8 * 80


@pytest.mark.parametrize("overrides", [CRAFTING, (*CRAFTING, *COUNTS), (*CRAFTING, *THRESHOLD), (*CRAFTING, *BAND), BAND])
@pytest.mark.parametrize("lag", [0, 2])
def test_draws_after_a_restore_are_those_of_the_uninterrupted_run(overrides: tuple[str, ...], lag: int) -> None:
    config = config_of(*overrides)
    stream, again = TaskStream(config), TaskStream(config)
    learner = Learner(lambda task: 0.9 if task.level == "L1" else 0.4)
    drawn = run(stream, learner, 7, lag)
    assert run(again, Learner(learner.success), 7, lag) == drawn, "one seed, one order"
    text = json.dumps(stream.state(), sort_keys=True, allow_nan=False)
    restored = TaskStream(config)
    restored.restore(json.loads(text))
    assert json.dumps(restored.state(), sort_keys=True) == text
    seed = 5
    assert run(restored, Learner(learner.success, seed), 5, lag) == run(stream, Learner(learner.success, seed), 5, lag)
    task = drawn[0][0]
    assert restored.another(task) == stream.another(task)
    assert run(TaskStream(config.model_copy(update={"seed": 1})), Learner(learner.success), 7, lag) != drawn


def test_the_state_stays_small_however_many_tasks_are_played() -> None:
    stream = TaskStream(config_of(*CRAFTING, *BAND))
    task = stream.step()[0]
    stream.observe([played(replace(task, id=f"task {number}"), [True]) for number in range(5000)])
    kept = stream.state()["chooser"]["by_task"]
    assert len(kept) == 4096 and kept[-1] == ["task 4999", [1.0]]


def test_a_state_of_another_curriculum_is_refused() -> None:
    with pytest.raises(InputError, match=r"the state is of curriculum\.kind=fixed, but the config says band; resume"):
        TaskStream(config_of(*BAND)).restore(TaskStream(config_of()).state())


@pytest.mark.parametrize("share", [0.0, 0.2, 0.25, 0.6, 0.99])
def test_a_share_is_spread_evenly(share: float) -> None:
    due = [before for number in range(1000) if (before := share_due(number, share)) is not None]
    assert due == list(range(len(due))) and abs(len(due) - 1000 * share) <= 1


def test_a_curriculum_survives_its_file() -> None:
    config = config_of(*CRAFTING, "curriculum.counts.L5=3", "curriculum.counts.L1=5")
    assert config.curriculum.counts == {"L5": 3, "L1": 5}
    assert parse_config(config.model_dump(mode="json"), "test") == config


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ((*CRAFTING, "curriculum.counts={L1: 4, L2: 3}"), "curriculum.counts adds up to 7, but rollout.groups_per_step=8; make them equal"),
        ((*CRAFTING, "curriculum.counts={L1: 8, L2: 0}"), "curriculum.counts.L2 is 0: input should be greater than or equal to 1"),
        (
            (*CRAFTING, "curriculum.counts={L1: 4, L6: 4}"),
            "crafting trains on no level 'L6' with these env.params: expected one of L1, L2, L3, L4",
        ),
        (
            (*CRAFTING, "env.params.levels={L1: 1, L2: 0}", "curriculum.counts={L2: 8}"),
            "trains on no level 'L2' with these env.params: expected one of L1",
        ),
        ((*CRAFTING, *THRESHOLD, *COUNTS), "counts means nothing to curriculum.kind=threshold; leave it out, or set curriculum.kind=fixed"),
        (
            (*CRAFTING, "curriculum.window=8"),
            "window means nothing to curriculum.kind=fixed; leave it out, or set curriculum.kind=threshold or band",
        ),
        ((*CRAFTING, *BAND, "curriculum.keep=0.1"), "curriculum.keep means nothing to curriculum.kind=band; leave it out, or set"),
        ((*CRAFTING, *THRESHOLD, "curriculum.levels=[L1, L2, L1]"), "names a level twice; name each once, easiest first"),
        ((*CRAFTING, *THRESHOLD, "curriculum.levels=[L2]"), "climbs from level to level, and there is L2 only; name more in"),
        ((*CRAFTING, *BAND, "curriculum.levels=[]"), "curriculum.levels is empty; name the levels to train on"),
        ((*BAND, "curriculum.low=0.8"), "curriculum.low=0.8 is not below curriculum.high=0.8; no task could lie between them"),
        (("curriculum.kind=threshold",), "curriculum.kind=threshold needs levels, and all tasks of number_search have one"),
        (("curriculum.counts={16-4: 16}",), "curriculum.counts needs levels, and all tasks of number_search have one"),
        ((*BAND, "curriculum.levels=[16-4]"), "curriculum.levels needs levels, and all tasks of number_search have one"),
        (("curriculum.kind=bandd",), "curriculum.kind is 'bandd': input should be 'fixed', 'threshold' or 'band'"),
        (("curriculum.advance=0.5",), "unknown key 'curriculum.advance': did you mean 'advance_at'?"),
    ],
)
def test_a_curriculum_that_cannot_be_is_refused_with_its_reason(overrides: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        config_of(*overrides)
    assert reason in str(caught.value)
