"""Failed groups are told to whom it concerns: all of them to the log, one of each kind to the person who watches."""

import io
import logging

import pytest
from rich.console import Console

from cluster.failures import FailureReport
from cluster.show.live import LiveView
from envs.contract import Task
from rollout.play import GroupFailure


def failure(group: int, kind: str) -> GroupFailure:
    task = Task(id=f"task-{group}", env="number_search", split="train", level="", seed=0)
    return GroupFailure(task=task, group=group, kind=kind, message=f"because of {kind}")


def test_each_failure_is_logged_and_one_of_a_kind_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    said = io.StringIO()
    report = FailureReport(LiveView(3, title="test", console=Console(file=said)))
    with caplog.at_level(logging.WARNING):
        report.report("step 1", [failure(0, "died"), failure(1, "died"), failure(2, "raised")])
        report.report("step 2", [failure(3, "died")])
    assert [record.getMessage().split(" was")[0] for record in caplog.records] == [
        "step 1: group 0 (task task-0)",
        "step 1: group 1 (task task-1)",
        "step 1: group 2 (task task-2)",
        "step 2: group 3 (task task-3)",
    ]
    shown = said.getvalue().splitlines()
    assert len(shown) == 2 and "task-0" in shown[0] and "task-2" in shown[1]
    assert "died: because of died" in shown[0] and "counted as failure/died" in shown[0]
