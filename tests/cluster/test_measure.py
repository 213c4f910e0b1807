"""Metrics of a step and of an evaluation: what is left out when it was not played, and what is a sum or a mean."""

from cluster.measure import eval_metrics, learner_metrics
from envs.contract import Task
from envs.metrics import Metric, Reduction
from rollout.play import GroupFailure
from tests.cluster.test_scores import group

TASK = Task(id="t", env="number_search", split="eval", level="", seed=0)
FAILED = GroupFailure(task=TASK, group=2, kind="died", message="gone")


def test_an_evaluation_says_nothing_of_what_could_not_be_played() -> None:
    played = [group(0, [True, False]), group(1, [True, True])]
    assert eval_metrics(played, [], [FAILED]) == {"eval/success": 3 / 4, "eval/failed": 1.0}
    assert eval_metrics([], [group(0, [False])], []) == {"eval/success_greedy": 0.0, "eval/failed": 0.0}
    assert eval_metrics([], [], [FAILED] * 4) == {"eval/failed": 4.0}


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
