"""Evaluate a policy outside of training: a run, a model folder or a hub name, on every task of an environment's `eval` split."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.actors import running
from cluster.checks.before_start import check_before_start, longest_context
from cluster.config import RunConfig
from cluster.interrupt import terminated_as_interrupted
from cluster.load_config import load_config, override_config
from cluster.prepare import eval_tasks
from cluster.run_folder import MARK, last_checkpoint
from cluster.sample import evaluate
from cluster.scores import levels_of, of_level, scores
from cluster.show.format import fixed, number
from envs.errors import InputError
from learner.model import check_folder
from rollout.play import GroupFailure, sampling_seed
from rollout.types import Group

_IN_FLIGHT = 1024
_TURN_TOKENS, _CONTEXT_TOKENS = 64, 2048
_ROWS = (
    ("success, sampled (pass@1)", "eval/success"),
    ("success, greedy", "eval/success_greedy"),
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was evaluated and the numbers: overall and by level."""

    policy: str
    environment: str
    tasks: int
    samples: int
    failed: tuple[str, ...]
    """What could not be played and is in no number: task, kind of failure and message of each group."""
    best_success: float
    overall: Mapping[str, float]
    levels: Mapping[str, Mapping[str, float]]

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(vars(self), indent=2)


def eval_config(model: str, env: str | None, params: Sequence[str], overrides: Sequence[str]) -> RunConfig:
    """The config of an evaluation: a run's own with its last checkpoint, or the defaults around a model.

    Raises `InputError` for a run without a checkpoint and for a model without an environment.
    """
    changes = [f"env.params.{param}" for param in params] + list(overrides)
    if (Path(model) / MARK).is_file():
        changes.insert(0, f"model.path={json.dumps(str(last_checkpoint(Path(model))))}")
        if env is not None:
            changes[1:1] = [f"env.name={json.dumps(env)}", "env.params={}"]
        return load_config(str(Path(model) / MARK), changes)
    if env is None:
        raise InputError(f"{model} is not the folder of a run (it has no {MARK}), so it has no environment of its own; name one with --env")
    check_folder(model)
    context = min(longest_context(model) or _CONTEXT_TOKENS, _CONTEXT_TOKENS)
    tree: dict[str, Any] = {
        "env": {"name": env},
        "model": {"path": model},
        "rollout": {"max_turn_tokens": min(_TURN_TOKENS, context // 4), "max_context_tokens": context},
        "cluster": {"env_workers": int(":" in env)},
    }
    return override_config(tree, changes, model)


def evaluate_policy(config: RunConfig, *, samples: int, greedy: bool, console: Console) -> Evaluation:
    """Play all tasks `samples` times at the training temperature, and once greedily. Progress is shown on `console`."""
    assert config.model.path is not None
    for sentence in check_before_start(config):
        console.print(f"note: {sentence}", markup=False, highlight=False, soft_wrap=True)
    tasks = eval_tasks(config)
    at_once = max(1, _IN_FLIGHT // max(samples, 1))
    sampled: list[Group] = []
    greedily: list[Group] = []
    failures: list[GroupFailure] = []
    with (
        console.status("starting the generators") as status,
        terminated_as_interrupted(),
        running(config, config.model.path, learners=False) as cluster,
    ):
        for begin in range(0, len(tasks), at_once):
            status.update(f"playing: {begin} of {len(tasks)} tasks done")
            part = tasks[begin : begin + at_once]
            seed = sampling_seed(config.seed, "eval", begin)
            played = evaluate(cluster.generators, part, config, samples=samples, seed=seed, greedy=greedy)
            sampled += played.sampled
            greedily += played.greedy
            failures += played.failures
    reductions = config.env.spec.metrics
    levels = levels_of(sampled, greedily)
    return Evaluation(
        policy=config.model.path,
        environment=config.env.name,
        tasks=len(tasks),
        samples=samples,
        failed=tuple(f"{failure.task.id}: {failure.kind}: {failure.message}" for failure in failures),
        best_success=config.env.spec.best_success(config.env_params),
        overall=scores(sampled, greedily, reductions),
        levels={level: scores(of_level(sampled, level), of_level(greedily, level), reductions) for level in levels}
        if len(levels) > 1
        else {},
    )


def evaluation_table(found: Evaluation) -> Table:
    """The numbers for a person: a row a number, a column for all tasks and one a level if there are several."""
    columns = {"all levels" if found.levels else "": found.overall} | dict(found.levels)
    table = Table(
        title=f"{found.policy} on {found.environment}",
        title_style="bold",
        title_justify="left",
        border_style="cyan",
        show_header=bool(found.levels),
    )
    table.add_column(style="dim")
    for name in columns:
        table.add_column(name, justify="right")
    shown = {name for _, name in _ROWS} | {f"{name}_{bound}" for name in found.overall for bound in ("low", "high")}
    for label, name in _ROWS + tuple((_label(name), name) for name in found.overall if name not in shown):
        if name in found.overall:
            table.add_row(label, *(_cell(values, name) for values in columns.values()))
    table.add_row("best possible success", fixed(found.best_success))
    table.caption = f"{found.tasks} tasks, {found.samples} samples each; brackets: 95 % interval over tasks"
    if found.failed:
        table.caption += f"; {len(found.failed)} groups failed and are not counted, the first: {found.failed[0]}"
    return table


def _label(name: str) -> str:
    area, _, quantity = name.partition("/")
    if quantity.startswith("pass_at_"):
        return f"pass@{quantity.removeprefix('pass_at_')}"
    return f"ended as {quantity}" if area == "end" else quantity.replace("_", " ")


def _cell(values: Mapping[str, float], name: str) -> str:
    low, high = number(values, f"{name}_low"), number(values, f"{name}_high")
    if low is None:
        return fixed(number(values, name))
    return f"{fixed(number(values, name))} [{fixed(low)}, {fixed(high)}]"
