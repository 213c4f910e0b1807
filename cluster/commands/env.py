"""The commands `pickaxe env` and `pickaxe demos`: look at an environment before anyone trains on it, and write demonstrations."""

import itertools
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.commands.shared import AsJson, Params, interrupted
from envs.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

    from envs.survey import Survey

_TRIES = 100
"""Episodes that are played for each solved one that is wanted, at most."""

app = typer.Typer(rich_markup_mode=None)

EnvName = Annotated[str, typer.Argument(metavar="ENV", help="A built-in environment, or package.module:SPEC for your own.")]
Split = Annotated[str, typer.Option(help="Which tasks: train or eval.")]
Level = Annotated[str | None, typer.Option(help="Only tasks of this level. [default: all]")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the tasks and players.")]


@app.command("env")
def report(
    env: EnvName,
    player: Annotated[str | None, typer.Option(help="Only this scripted player. [default: all]")] = None,
    tasks: Annotated[int, typer.Option(min=1, metavar="N", help="How many tasks to play.")] = 200,
    level: Level = None,
    split: Split = "eval",
    param: Params = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Report an environment before anyone trains on it.

    Checks its contract, then plays tasks with scripted players: success, turns and the shortest length by level, how episodes end,
    steps a second of the environment alone and the time to draw a task, in one process. Exit status 1 if the contract is broken.
    An environment of your own runs in this process: Ctrl-C ends one that hangs.

    \b
    pickaxe env number_search
    pickaxe env crafting --level L4 --player plausible --param skin=opaque
    pickaxe env my_envs.maze:SPEC --split train --json
    """
    with interrupted("Interrupted."):
        from cluster.load_config import parse_params, read_values
        from envs.catalog import find
        from envs.check import check_env
        from envs.survey import draw_tasks, survey

        spec = find(env)
        params = parse_params(spec, read_values(param or []))
        players = [player] if player is not None else list(spec.players)
        for name in players:
            if name not in spec.players:
                raise InputError(f"{spec.name} has no player {name!r}: {did_you_mean(name, list(spec.players))}")
        begun = time.perf_counter()
        drawn = draw_tasks(spec, params, split=split, seed=seed, count=tasks, level=level)
        seconds_per_task = (time.perf_counter() - begun) / len(drawn)
        if len(drawn) < tasks:
            print(f"note: the split {split} has {len(drawn)} such tasks", file=sys.stderr)
        broken = [str(violation) for violation in check_env(spec, params=params)]
        found = None if broken else survey(spec, drawn, players, seconds_per_task)
    if as_json:
        shown = {} if found is None else asdict(found)
        print(json.dumps({"env": spec.name, "split": split, "tasks": len(drawn), "broken": broken, **shown}))
    else:
        from rich.console import Console

        console = Console()
        console.print(f"{spec.name}: {spec.summary}", style="bold", markup=False, highlight=False, soft_wrap=True)
        for violation in broken:
            console.print(f"broken  {violation}", style="red", markup=False, highlight=False, soft_wrap=True)
        if found is not None:
            console.print("contract: nothing broken was found", style="green")
            console.print(_table(found))
            best = f"Best possible success on all of eval: {spec.best_success(params):.4g}. "
            speed = f"{found.steps_per_s:,.0f} steps a second, {1000 * found.seconds_per_task:.2f} ms a task."
            console.print(best + speed, highlight=False)
    if broken:
        raise typer.Exit(1)


def _table(found: "Survey") -> "Table":
    from rich.table import Table

    table = Table()
    for name, justify in (("level", "left"), ("player", "left"), *((name, "right") for name in ("tasks", "success", "turns", "shortest"))):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("otherwise")
    last = None
    for row in found.rows:
        ends = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(row.ends.items()) if name != "solved")
        numbers = (f"{row.episodes}", f"{row.success:.3f}", f"{row.turns:.1f}", f"{row.optimal:.1f}")
        table.add_row("" if row.level == last else row.level, row.player, *numbers, ends)
        last = row.level
    return table


@app.command()
def demos(
    env: EnvName,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the episodes go, one JSON object a line.")],
    player: Annotated[str, typer.Option(help="The scripted player.")] = "plausible",
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Episodes to write.")] = 1000,
    level: Level = None,
    split: Split = "train",
    only_solved: Annotated[bool, typer.Option("--only-solved", help="Leave out what the player did not solve.")] = False,
    observation_role: Annotated[str, typer.Option(help="Chat role of the environment's replies: tool or user.")] = "tool",
    param: Params = None,
    seed: Seed = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it is there.")] = False,
) -> None:
    """Write demonstrations of a scripted player as chat messages, which any tool for supervised training reads.

    Each line has `messages` (role and content), `reward`, `end`, `env`, `task`, `level`, `player`. `cold_start.file=FILE` imitates them.

    \b
    pickaxe demos number_search --count 4096 --out demos.jsonl
    pickaxe demos crafting --player oracle --level L3 --param grammar=json --out l3.jsonl
    """
    with interrupted("Interrupted; nothing was written."):
        print("loading ...", file=sys.stderr)
        from rich.progress import track

        from cluster.demos import player_seed, record
        from cluster.load_config import parse_params, read_values
        from envs.catalog import find
        from envs.survey import stream

        spec = find(env)
        params = parse_params(spec, read_values(param or []))
        if player not in spec.players:
            raise InputError(f"{spec.name} has no player {player!r}: {did_you_mean(player, list(spec.players))}")
        if observation_role not in ("tool", "user"):
            raise InputError(f"--observation-role is {observation_role!r}; expected tool or user")
        if out.exists() and not overwrite:
            raise InputError(f"{out} exists; give another --out, or --overwrite to replace it")
        temporary = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            file = temporary.open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {out}: {error.strerror}; give another --out") from error
        try:
            tasks = itertools.islice(stream(spec, params, split=split, seed=seed, level=level), _TRIES * count if only_solved else count)
            played = (record(spec, params, task, player, player_seed(seed, number), observation_role) for number, task in enumerate(tasks))
            kept = (episode for episode in played if episode["end"] == "solved") if only_solved else played
            written = 0
            with file:
                for episode in track(itertools.islice(kept, count), total=count, description=f"{player} plays", transient=True):
                    file.write(json.dumps(episode) + "\n")
                    written += 1
            if not written:
                raise InputError(f"{player} solved none of the tasks; choose another --player or --level, or leave out --only-solved")
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
    print(f"{out}: {written} episodes of {player} on {spec.name}" + (" (no more was found)" if written < count else ""))
