"""Metrics of a step and of an evaluation: what is left out when it was not played, and what is a sum or a mean."""

import io
import json
import re
from dataclasses import replace

from rich.console import Console

from cluster.evaluate import Evaluation, evaluation_table
from cluster.measure import learner_metrics, rollout_metrics
from cluster.scores import eval_metrics, levels_of, of_level, scores, wilson
from envs.contract import Task
from envs.metrics import Metric, Reduction
from rollout.play import GroupFailure
from rollout.types import Group
from tests.cluster.test_scores import group

TASK = Task(id="t", env="number_search", split="eval", level="", seed=0)
FAILED = GroupFailure(task=TASK, group=2, kind="died", message="gone")


def test_an_evaluation_says_nothing_of_what_could_not_be_played() -> None:
    played = [group(0, [True, False]), group(1, [True, True])]
    sampled = eval_metrics(played, [], [FAILED])
    assert (sampled["eval/success"], sampled["eval/failed"]) == (3 / 4, 1.0)
    assert not any(name.startswith("eval/success_greedy") for name in sampled)
    greedy = eval_metrics([], [group(0, [False])], [])
    assert greedy.keys() == {"eval/success_greedy", "eval/success_greedy_low", "eval/success_greedy_high", "eval/failed"}
    assert (greedy["eval/success_greedy"], greedy["eval/failed"]) == (0.0, 0.0)
    assert eval_metrics([], [], [FAILED] * 4) == {"eval/failed": 4.0}


def test_an_evaluation_is_told_by_level() -> None:
    easy = [at("L1", group(0, [True] * 4)), at("L1", group(2, [True, True, True, False]))]
    hard = [at("L2", group(1, [False] * 4)), at("L2", group(3, [False, False, False, True]))]
    found = eval_metrics([easy[0], hard[0], easy[1], hard[1]], [at("L1", group(4, [True])), at("L2", group(5, [False]))], [])
    assert (found["eval/success"], found["eval/success/L1"], found["eval/success/L2"]) == (8 / 16, 7 / 8, 1 / 8)
    # Two of four samples of the last task hold its one success in 3 of 6 pairs.
    assert (found["eval/pass_at_2/L1"], found["eval/pass_at_2/L2"], found["eval/pass_at_4/L2"]) == (1.0, (0 + 3 / 6) / 2, 1 / 2)
    assert (found["eval/success_greedy/L1"], found["eval/success_greedy/L2"]) == (1.0, 0.0)
    # Resampled over the two tasks: each alone, in a quarter of the draws each.
    assert (found["eval/success_low/L2"], found["eval/success_high/L2"]) == (0.0, 1 / 4)
    assert (found["eval/success_greedy_low/L1"], found["eval/success_greedy_high/L1"]) == wilson(1.0, 1)
    one = eval_metrics(easy, [], [])
    assert one["eval/success"] == 7 / 8 and not any(name.endswith("/L1") for name in one), "one level is everything"


def test_the_table_of_an_evaluation_has_a_column_for_each_level_easiest_first() -> None:
    groups = {"easy": [group(0, [True] * 2)], "medium": [group(1, [True, False])], "hard": [group(2, [False, False])]}
    sampled = [at(level, played) for level, (played,) in groups.items()]
    names = levels_of(sampled)
    found = Evaluation(
        policy="p",
        environment="e",
        tasks=3,
        samples=2,
        failed=(),
        best_success=1.0,
        overall=scores(sampled, [], {"repeats": Reduction.MEAN}),
        levels={name: scores(of_level(sampled, name), [], {"repeats": Reduction.MEAN}) for name in names},
    )
    out = io.StringIO()
    Console(file=out, width=200).print(evaluation_table(found))
    rows = {cells[0].strip(): cells[1:] for line in out.getvalue().splitlines() if len(cells := re.split("[│┃]", line)[1:-1]) == 5}
    assert [cell.strip() for cell in rows[""]] == ["all levels", "easy", "medium", "hard"]
    assert [cell.split()[0] for cell in rows["success, sampled (pass@1)"]] == ["0.500", "1.000", "0.500", "0.000"]
    assert [cell.split()[0] for cell in rows["pass@2"]] == ["0.667", "1.000", "1.000", "0.000"]
    assert all("[" in cell for name in ("success, sampled (pass@1)", "pass@2") for cell in rows[name])
    assert not any("low" in name or "high" in name for name in rows)
    assert json.loads(found.to_json())["levels"]["medium"]["eval/success"] == 0.5


def test_a_step_is_told_by_level_and_says_how_many_groups_teach() -> None:
    groups = [
        at("L1", group(0, [True, True])),
        at("L1", group(1, [True, False])),
        at("L2", group(2, [False, False])),
        at("", group(3, [True])),
    ]
    found = rollout_metrics(groups, [], 1.0)
    assert {name: value for name, value in found.items() if name.startswith("level/")} == {
        "level/L1/success": 3 / 4,
        "level/L1/groups": 2.0,
        "level/L2/success": 0.0,
        "level/L2/groups": 1.0,
    }
    assert found["rollout/informative"] == 1 / 4 == 1 - found["groups/dead_fraction"]


def at(level: str, played: Group) -> Group:
    """The group with its task at the level."""
    task = replace(TASK, id=f"{level}/{played.trajectories[0].group}", level=level)
    return Group(trajectories=tuple(replace(episode, task=task) for episode in played.trajectories))


def test_a_loss_is_summed_over_ranks_and_averaged_over_steps() -> None:
    def part(loss: float, tokens: float) -> dict[str, Metric]:
        return {
            "learner/loss": Metric(value=loss, reduction=Reduction.SUM),
            "learner/tokens": Metric(value=tokens, reduction=Reduction.SUM),
            "learner/entropy_nats": Metric(value=loss, weight=tokens),
        }

    found = learner_metrics([[part(1.0, 10), part(2.0, 30)], [part(3.0, 10), part(4.0, 10)]])
    assert found["learner/loss"] == ((1 + 3) + (2 + 4)) / 2
    assert found["learner/tokens"] == 60, "of the whole batch"
    assert found["learner/entropy_nats"] == (1 * 10 + 2 * 30 + 3 * 10 + 4 * 10) / 60
