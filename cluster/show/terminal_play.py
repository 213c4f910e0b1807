"""Play an environment in the terminal, as the policy would: read the messages, write one action a turn; or watch a player."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from envs.catalog import ENVS
from envs.contract import Env, EnvSpec, Step, Task
from envs.errors import InputError, did_you_mean
from envs.survey import survey

_COMPARED = 200
_MOST_TURNS = 10_000


def play(spec: EnvSpec, params: BaseModel, *, seed: int, player: str | None, console: Console) -> None:
    """One episode of the task that `seed` draws, by a person or by a scripted player, and how the scripted players do."""
    task = next(iter(spec.tasks(params, "train", seed)))
    env = spec.make(task)
    act = _person(env, spec.view, console) if player is None else _watched(player_of(spec, player)(task, seed).act, console)
    how = "You are the policy: write one action a line. Ctrl-D leaves." if player is None else f"The {player} player acts."
    console.print(f"{spec.name}: {spec.summary}", style="bold", markup=False, highlight=False, soft_wrap=True)
    console.print(f"task {task.id}, seed {seed}. {how}", style="dim", markup=False, highlight=False, soft_wrap=True)
    for message in env.start():
        console.print(f"\n[dim]{message.role}[/]", highlight=False)
        console.print(message.content, markup=False, highlight=False, soft_wrap=True)
    step = _episode(env.step, act, console)
    if step is None:
        console.print("\nLeft in the middle. Come back any time.")
        return
    assert step.end is not None
    console.print(f"\nThe episode ended: {step.end.value.replace('_', ' ')}.", style="bold", highlight=False)
    for name, value in env.summary().items():
        console.print(f"  {name:<20} {value:.4g}", highlight=False, markup=False)
    compare(spec, params, seed, console)


def player_of(spec: EnvSpec, name: str) -> Callable[[Task, int], Any]:
    """A scripted player; raises `InputError` with the closest name."""
    if name not in spec.players:
        raise InputError(f"{spec.name} has no player {name!r}: {did_you_mean(name, list(spec.players))}")
    return spec.players[name]


def _episode(take: Callable[[str], Step], act: Callable[[str | None], str], console: Console) -> Step | None:
    """The last step; None if the person left."""
    observation: str | None = None
    for _ in range(_MOST_TURNS):
        try:
            action = act(observation)
        except (EOFError, KeyboardInterrupt):
            return None
        step = take(action)
        console.print(step.observation, markup=False, highlight=False, soft_wrap=True, style="green" if step.valid else "yellow")
        if step.reward or step.end is not None:
            console.print(f"reward {step.reward:g}", style="dim", highlight=False)
        if step.end is not None:
            return step
        observation = step.observation
    raise AssertionError(f"the episode did not end in {_MOST_TURNS} turns")


def _person(env: Env, view: Callable[[Any], str] | None, console: Console) -> Callable[[str | None], str]:
    def act(observation: str | None) -> str:
        if view is not None:
            console.print(f"\n{view(env)}", markup=False, highlight=False, soft_wrap=True)
        return console.input("[bold cyan]> [/]")

    return act


def _watched(player: Callable[[str | None], str], console: Console) -> Callable[[str | None], str]:
    def act(observation: str | None) -> str:
        action = player(observation)
        console.print(f"[bold cyan]> [/]{action}", highlight=False)
        return action

    return act


def compare(spec: EnvSpec, params: BaseModel, seed: int, console: Console) -> None:
    """Print how often the scripted players succeed on the evaluation tasks, and the best that is possible."""
    tasks = list(islice(spec.tasks(params, "eval", seed), _COMPARED))
    rows = survey(spec, tasks, list(spec.players), 0.0).rows
    console.print(f"\nSuccess on {len(tasks)} evaluation tasks:", highlight=False)
    for name in spec.players:
        solved = sum(row.success * row.episodes for row in rows if row.player == name)
        console.print(f"  {name + ' player':<20} {solved / len(tasks):.3f}", highlight=False, markup=False)
    console.print(f"  {'best possible':<20} {spec.best_success(params):.3f}", highlight=False)


def environments() -> Iterator[str]:
    """What `pickaxe play` says without a name: every built-in environment with its settings and players."""
    for name, spec in ENVS.items():
        yield f"{name}: {spec.summary}"
        for field, info in spec.params.model_fields.items():
            yield f"  --param {field}={info.default}  {info.description}"
        yield f"  players: {', '.join(spec.players)}"
