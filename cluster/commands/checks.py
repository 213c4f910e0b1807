"""What to look at before a training is paid for: `pickaxe preflight`, `selfcheck`, `bench` and `pickaxe train --dry-run`."""

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.commands.shared import AsJson, Overrides, failing, interrupted, make_folder
from envs.errors import InputError

if TYPE_CHECKING:
    from cluster.config import RunConfig

app = typer.Typer(rich_markup_mode=None)

Recipe = Annotated[str, typer.Argument(metavar="RECIPE_OR_RUN", help="A shipped recipe, a YAML file, or a run folder: its last policy.")]


@app.command()
def preflight(
    recipe: Recipe,
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, metavar="K", help="Tasks to play, rounded up to whole steps of the recipe.")] = 64,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Also write preflight.png, the histogram, into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play the first groups of a run before training on them, and say what to change.

    K tasks are played by G siblings each, with the policy that RL would start from: the recipe's cold start is done first, `model.path`
    or the folder of a run give another one. Nothing is trained for good and nothing is written but what --out asks for.

    \b
    solved k/G    how many groups had k successes among their G siblings
    mixed         the share of groups whose rewards differ: only they carry a gradient if siblings are compared
    intervals     95 %, over tasks, which are the independent draws
    seconds       of one step: groups sampled, one step learned (and thrown away), weights pushed

    The advice is a function of these numbers. Groups with a gradient are few if they are less than half; if every episode
    succeeds with probability p they are 1 - p^G - (1 - p)^G of all.

    \b
    pickaxe preflight number-search-tiny
    pickaxe preflight number-search-tiny cold_start.episodes=0 --tasks 16
    pickaxe preflight runs/demo env.params.numbers=32 env.params.guesses=5 --out preflight
    """
    with interrupted("Interrupted; every process has ended."):
        config = _config(recipe, overrides or [])
        picture = None if out is None else make_folder(out) / "preflight.png"
        print("loading torch, ray and vLLM ...", file=sys.stderr)
        from rich.console import Console

        from cluster.checks.preflight import preflight as run
        from cluster.checks.preflight_advice import advise
        from cluster.checks.preflight_view import preflight_report, write_histogram
        from cluster.load_config import recipe_title
        from cluster.show.live import LiveView

        title = f"{recipe_title(recipe)} · {config.algorithm.method} · {config.env.name} · G = {config.rollout.group_size}"
        with failing(), LiveView(0, title=f"preflight {title}", console=Console(stderr=True)) as view:
            seen, seconds = run(config, tasks, view)
        advice = advise(seen)
    if picture is not None:
        write_histogram(picture, title, seen)
    if as_json:
        numbers = asdict(seen) | {"groups": seen.groups, "seconds": asdict(seconds) | {"step": seconds.step}}
        print(json.dumps(numbers | {"advice": [asdict(one) for one in advice]}, indent=2))
    else:
        Console().print(preflight_report(title, seen, seconds, advice))
        if picture is not None:
            print(f"wrote {picture}")


@app.command()
def selfcheck(recipe: Recipe, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Prove on your own recipe that a step does not depend on how it is cut, and that sampler and learner see one policy.

    One batch is sampled with the policy that RL would start from (after the recipe's cold start). Its first optimiser step is taken
    with the recipe's own algorithm, dtype and ZeRO stage, again and again from the same weights, and the parameters are compared:

    \b
    other micro-batches    one row at a time, half and twice learner.micro_batch_tokens (that is, other gradient accumulation)
    other ranks            1 and 2 (or cluster.learners, if more), in processes on this machine
    another order          rows dealt at random, so that short rows stand beside long ones

    The comparison uses learner.optimizer=sgd without clipping, whatever the recipe says: SGD's step is the gradient and shows a wrong
    scale, which Adam and a clipped norm divide out. Then the log-probs of the sampled tokens are compared, sampler against learner.

    Exit status: 0 everything is equal up to rounding (1e-4 of the largest update in float32, 2e-2 in bfloat16), 1 it is not.

    \b
    pickaxe selfcheck number-search-tiny
    pickaxe selfcheck runs/demo algorithm.method=grpo learner.zero_stage=2
    """
    with interrupted("Interrupted; every process has ended."):
        config = _config(recipe, overrides or [])
        print("loading torch, ray and vLLM ...", file=sys.stderr)
        from rich.console import Console

        from cluster.checks.selfcheck import check_batch, sample_batch
        from cluster.checks.selfcheck_view import selfcheck_report
        from cluster.load_config import recipe_title
        from cluster.show.live import LiveView

        title = f"{recipe_title(recipe)} · {config.algorithm.method}"
        with (
            failing(),
            tempfile.TemporaryDirectory(prefix="pickaxe-") as scratch,
            LiveView(0, title=f"selfcheck {title}", console=Console(stderr=True)) as view,
        ):
            batch = sample_batch(config, view, Path(scratch) / "policy")
            found = check_batch(config, batch, view, Path(scratch))
    if as_json:
        print(json.dumps(asdict(found) | {"passed": found.passed}, indent=2))
    else:
        Console().print(selfcheck_report(title, found))
    raise typer.Exit(0 if found.passed else 1)


@app.command()
def bench(
    overrides: Overrides = None,
    repeats: Annotated[int, typer.Option(min=1, help="Counted repeats; medians are printed.")] = 7,
    out: Annotated[Path, typer.Option(help="Where the numbers go as JSON.")] = Path("runs/bench.json"),
) -> None:
    """Measure this machine: whole steps, and generator, learner and push against something bare beside them.

    \b
    About three minutes on a quiet machine; ratios above 1 are faster than the yardstick. Overrides change number-search-tiny.
    """
    from cluster.bench import bench as run

    with interrupted("pickaxe: interrupted; nothing was written"), failing():
        run(out, list(overrides or []), repeats)


def _config(recipe: str, overrides: list[str]) -> "RunConfig":
    """The config of a recipe; the folder of a run stands for its last policy, which needs no cold start any more."""
    from cluster.load_config import load_config

    if Path(recipe).is_dir():
        from cluster.evaluate import eval_config
        from cluster.run_folder import MARK

        if (Path(recipe) / MARK).is_file():
            return eval_config(recipe, None, [], ["cold_start.episodes=0", *overrides])
    return load_config(recipe, overrides)


def dry_run(config: "RunConfig", title: str, gpu_memory_gib: float | None, *, asked: bool) -> None:
    """Print what `pickaxe train` would start. Raises `InputError` if only its memory was given, or for what a start would refuse."""
    if not asked:
        raise InputError("--gpu-memory needs --dry-run: a run finds out itself how much memory its GPUs have")
    print("loading torch ...", file=sys.stderr)
    from cluster.checks.dry_run_view import dry_run_report

    print("\n".join(dry_run_report(config, title, gpu_memory_gib)))
