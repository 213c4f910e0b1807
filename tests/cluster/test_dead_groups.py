"""Dead groups: which are played again, what takes their place, and a whole run with every remedy at once."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cluster.actors import Cluster
from cluster.curriculum.stream import TaskStream
from cluster.dead_groups import Remedies, plays_again, refilled
from cluster.loop import train
from cluster.prepare import policy_tokenizer
from cluster.run_folder import RunFolder
from cluster.show.live import LiveView
from cluster.show.transcripts import read_trajectories
from cluster.sinks import read_metrics
from envs.contract import End
from learner.plan import resolve
from rollout.chat import ChatEncoder
from rollout.config import DeadGroupsConfig
from rollout.types import Group
from tests.cluster.test_real_run import quiet, tiny
from tests.cluster.test_rounds_run import START
from tests.learner.builders import one_turn_group

REWARDS = st.lists(st.lists(st.sampled_from([0.0, 0.7, 1.0]), min_size=3, max_size=3), min_size=1, max_size=8)


@given(first=REWARDS, rounds=st.lists(REWARDS, max_size=3), numbers=st.data())
def test_only_dead_groups_are_replaced_and_only_by_groups_with_a_signal(
    first: list[list[float]], rounds: list[list[list[float]]], numbers: st.DataObject
) -> None:
    config = DeadGroupsConfig(resample_rounds=3)
    # Numbers have holes where the environment of a group failed.
    names = sorted(numbers.draw(st.sets(st.integers(0, 20), min_size=len(first), max_size=len(first))))
    batch = [one_turn_group(rewards, group=name) for name, rewards in zip(names, first, strict=True)]
    for answers in rounds:
        asked = [group.trajectories[0].group for group in batch if plays_again(group, config)]
        new = [one_turn_group(rewards, group=name) for name, rewards in zip(asked, answers, strict=False)]
        after = refilled(batch, new)
        assert [group.trajectories[0].group for group in after] == names
        assert all(now is before for now, before in zip(after, batch, strict=True) if not before.dead)
        assert sum(group.dead for group in batch) - sum(group.dead for group in after) == sum(not group.dead for group in new)
        batch = after


def test_a_task_that_everybody_solved_is_not_played_again_itself() -> None:
    same, other = DeadGroupsConfig(resample_tasks="same"), DeadGroupsConfig()
    failed, solved, mixed = one_turn_group([0.0, 0.0]), solved_group(0), one_turn_group([0.0, 1.0])
    assert [plays_again(group, same) for group in (failed, solved, mixed)] == [True, False, False]
    assert [plays_again(group, other) for group in (failed, solved, mixed)] == [True, True, False]


@pytest.mark.parametrize(
    ("overrides", "first", "words"),
    [
        ((), [0.0, 0.0], "for 5 steps no gradient: in every group all rewards are equal. If"),
        (
            ("dead_groups.resample_rounds=2", "dead_groups.resample_tasks=same"),
            [0.0, 1.0],
            "did not fill (the last one had 1 of 2 dead groups after 2 rounds)",
        ),
    ],
)
def test_starvation_is_reported_once_with_its_numbers(overrides: tuple[str, ...], first: list[float], words: str) -> None:
    config, said = tiny(*overrides), io.StringIO()
    nobody = Cluster(generators=(), learners=(), env_workers=(), config=config, transfer="gloo")
    encoder = ChatEncoder(policy_tokenizer(config))
    view = LiveView(9, title="test", console=Console(file=said))
    remedies = Remedies(resolve(config.algorithm), nobody, encoder, TaskStream(config), view)
    # A task that everybody solved is not played again, so that no generator is asked.
    starving = [one_turn_group(first), solved_group(1)]
    for step in range(1, 9):
        assert not said.getvalue() or step > 5
        batch, _ = remedies.apply(step, starving)
        assert batch == starving
    assert said.getvalue().count(words) == said.getvalue().count("cold_start.episodes") == 1


def solved_group(number: int) -> Group:
    group = one_turn_group([1.0, 1.0], group=number)
    return Group(trajectories=tuple(replace(one, end=End.SOLVED) for one in group.trajectories))


def test_all_remedies_in_one_run(tmp_path: Path) -> None:
    again = ("dead_groups.resample_rounds=2", "dead_groups.resample_tasks=same", "dead_groups.temperature=1.2")
    foreign = ("dead_groups.hint=true", "dead_groups.train_with_hint=false", "dead_groups.demonstration=oracle", "algorithm.drift=tis")
    size = (
        "rollout.groups_per_step=12",
        "rollout.group_size=2",
        "learner.minibatches=1",
        "steps=2",
        "eval.every=2",
        "output.trajectories_every=1",
    )
    config = tiny(*START, "env.params.numbers=8", *size, *again, *foreign)
    folder = RunFolder.create(tmp_path / "run", config, overwrite=False)
    summary = train(config, folder, quiet(2))
    steps = read_metrics(folder.path)[1:]
    assert summary["episodes"] == 2 * 24 + sum(step["rollout/resampled_episodes"] for step in steps)
    assert sum(step["groups/resampled"] for step in steps) > 0 < sum(step["groups/demonstrated"] for step in steps)
    for number, step in enumerate(steps, 1):
        assert step["sync/sampler_learner_gap"] < 1e-4, "what was sampled otherwise is not compared"
        assert step["groups/hinted"] == step["groups/resampled"]
        first, second = 2 * 12 * step["groups/dead_zero_fraction"], step["rollout/resampled_episodes"]
        assert first <= second + 1e-9 and second <= 2 * first + 1e-9
        cured = (step["groups/resampled"] + step["groups/demonstrated"]) / 12
        assert step["batch/dead_fraction"] == pytest.approx(step["groups/dead_fraction"] - cured)
        rows = read_trajectories(folder.path / "trajectories" / f"{number}.jsonl")
        assert len(rows) == 24
        departures = [tuple(row["departures"]) for row in rows]
        assert departures.count(("temperature", "hint")) == 2 * step["groups/resampled"]
        assert departures.count(("player",)) == step["groups/demonstrated"]
        for row in rows:
            assert "Hint" not in "".join(row["tokens"]), "nothing of the hint is trained"
