"""The command line. Everything heavy is imported inside the command that needs it, so that help and lists come at once."""

import logging
import os
import random
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from cluster.commands import checks, compare, env, lab, model
from cluster.commands.shared import AsJson, GpuMemory, Overrides, Params, failing, interrupted
from envs.errors import InputError, did_you_mean

app = typer.Typer(
    name="pickaxe",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.add_typer(checks.app)
app.add_typer(compare.app)
app.add_typer(env.app)
app.add_typer(model.app, name="model")
app.add_typer(lab.app, name="lab")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exit status: 0 done, 1 the run failed, 2 bad input, 130 interrupted."""
    # Nobody is told that this runs, and the libraries keep quiet: what matters is said by the commands themselves. A waiting thread of
    # torch sleeps soon, as in `actors`: spinning it would take the core that another process needs.
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "GOMP_SPINCOUNT": "10000",
    }.items():
        os.environ.setdefault(name, value)
    logging.getLogger().addHandler(logging.NullHandler())  # else Python prints the libraries' warnings over a live panel
    try:
        app(args=arguments)
    except InputError as error:
        print(f"pickaxe: {error}", file=sys.stderr)
        sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pickaxe {version('pickaxe')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Train LLM agents with reinforcement learning in multi-turn text environments.

    \b
    See it work (6 minutes on two CPU cores):   pickaxe train number-search-tiny
    See what it optimises:                      pickaxe explain dr_grpo
    Play an environment yourself:               pickaxe play number_search
    """


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe (see `pickaxe recipes`) or the path of a YAML file.")],
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run. [default: runs/RECIPE-N, the first free N]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the older run in --run-dir first.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, where, in how much memory; start nothing.")] = False,
    gpu_memory: GpuMemory = None,
) -> None:
    """Train a policy.

    Writes into the run folder: config.yaml (what ran), metrics.jsonl and tensorboard/ (every metric), curve.png and report.html,
    trajectories/ (transcripts with the credit of every token), checkpoints/ (Hugging Face folders), summary.json, log.txt.

    Ctrl-C ends it in order: all processes end, and curve and report of the steps so far are written.

    \b
    pickaxe train number-search-tiny
    pickaxe train number-search-tiny algorithm.method=rloo learner.lr=5e-4 steps=50 --run-dir runs/rloo
    pickaxe train my-recipe.yaml seed=1
    pickaxe train crafting-qwen3-4b-node --dry-run --gpu-memory 80
    """
    from cluster.load_config import load_config, recipe_title
    from cluster.run_folder import check_free, claim

    config, title = load_config(recipe, overrides or []), recipe_title(recipe)
    if run_dir is not None:
        check_free(run_dir, overwrite=overwrite)
    elif overwrite:
        raise InputError("--overwrite needs --run-dir: without it every run gets a folder of its own")
    if dry_run or gpu_memory is not None:
        return checks.dry_run(config, title, gpu_memory, asked=dry_run)
    with interrupted("Interrupted before the run had begun."):
        print("loading torch, ray and vLLM ...", file=sys.stderr)
        from cluster.checks.before_start import check_before_start

        advice = check_before_start(config)
        from cluster.supervise import run_training

        folder = run_dir or claim(title)
        raise typer.Exit(run_training(config, title, overrides or [], folder, advice, overwrite=overwrite))


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help="A run folder, a Hugging Face model folder, or a hub name.")],
    overrides: Overrides = None,
    env: Annotated[str | None, typer.Option(help="The environment. [default: the run's own; a model needs one]")] = None,
    env_param: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A setting of the environment; give it again for more.")
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="Sampled episodes a task; 0 for greedy alone.")] = 16,
    greedy: Annotated[bool, typer.Option("--greedy/--no-greedy", help="Also play every task once greedily.")] = True,
    max_tasks: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks. [default: as the run, or all]")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of sampling and tasks. [default: the run's, or 0]")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how often a policy succeeds, on the tasks of the environment's `eval` split.

    Starts generators only and writes nothing. A run is evaluated with its own settings and its last checkpoint. Prints success
    with a 95 % interval over tasks, greedy success, pass@k, how episodes ended, and the environment's own numbers.

    \b
    pickaxe eval runs/demo
    pickaxe eval runs/demo --env-param numbers=32 --env-param guesses=5
    pickaxe eval models/smollm2 --env number_search --samples 4 rollout.max_turn_tokens=32
    """
    if not samples and not greedy:
        raise InputError("--samples 0 and --no-greedy leave nothing to play; drop one of them")
    changes = [*(overrides or [])]
    changes += [f"eval.max_tasks={max_tasks}"] if max_tasks is not None else []
    changes += [f"seed={seed}"] if seed is not None else []
    with interrupted("Interrupted; every process has ended."):
        print("loading torch, ray and vLLM ...", file=sys.stderr)
        from rich.console import Console

        from cluster.evaluate import eval_config, evaluate_policy, evaluation_table

        config = eval_config(model, env, env_param or [], changes)
        with failing():
            found = evaluate_policy(config, samples=samples, greedy=greedy, console=Console(stderr=True))
    if as_json:
        print(found.to_json())
    else:
        Console().print(evaluation_table(found))


@app.command()
def recipes() -> None:
    """List the shipped recipes, and the comparisons for `pickaxe compare`."""
    from cluster.compare.comparison import comparison_names, load_comparison
    from cluster.load_config import load_config, recipe_names

    described = {name: load_config(name).description for name in recipe_names()}
    described |= {f"compare {name}": load_comparison(name).description for name in comparison_names()}
    for name, description in described.items():
        print(f"{name:<{max(map(len, described))}}  {description}")


@app.command()
def explain(
    what: Annotated[str, typer.Argument(metavar="RECIPE_OR_METHOD", help="A recipe, a YAML file, or a method such as dr_grpo.")],
    overrides: Overrides = None,
) -> None:
    """Print what would be optimised, as a formula and in words, and a recipe's resolved config.

    \b
    pickaxe explain dr_grpo
    pickaxe explain grpo algorithm.clip_high=0.28 algorithm.normaliser=token
    pickaxe explain number-search-tiny learner.lr=1e-4
    """
    from cluster.load_config import dump_config, load_config, override_config, recipe_names
    from learner.explain import describe, formula
    from learner.methods import METHODS
    from learner.plan import resolve

    if what in METHODS:
        algorithm = override_config({"algorithm": {"method": what}}, overrides or [], what).algorithm
    elif what in recipe_names() or Path(what).suffix in (".yaml", ".yml"):
        config = load_config(what, overrides or [])
        algorithm = config.algorithm.model_copy(update={"generation_limit": config.generation_limit})
        print(dump_config(config))
    else:
        raise InputError(f"no recipe and no method {what!r}: {did_you_mean(what, [*recipe_names(), *METHODS])}")
    plan = resolve(algorithm)
    print(describe(plan.method))
    print(f"\n{formula(plan)}")


@app.command()
def play(
    env: Annotated[
        str | None, typer.Argument(metavar="ENV", help="A built-in environment, or package.module:SPEC. [default: list them]")
    ] = None,
    param: Params = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the task. [default: a new one every time]")] = None,
    player: Annotated[str | None, typer.Option(help="Watch this scripted player, such as oracle, instead of playing.")] = None,
) -> None:
    """Play an environment yourself, or watch a scripted player. Without ENV: the environments, their settings and players.

    You see what the policy sees and write what it writes. Ctrl-D leaves. At the end: how the scripted players do.

    \b
    pickaxe play number_search
    pickaxe play number_search --param numbers=64 --param guesses=6 --seed 3
    pickaxe play number_search --player oracle
    """
    from rich.console import Console

    from cluster.load_config import parse_params, read_values
    from cluster.show import terminal_play
    from envs.catalog import find

    if env is None:
        print("\n".join(terminal_play.environments()))
        return
    spec = find(env)
    params = parse_params(spec, read_values(param or []))
    seed = random.randrange(1_000_000) if seed is None else seed
    terminal_play.play(spec, params, seed=seed, player=player, console=Console())


if __name__ == "__main__":
    main()
