"""The command `pickaxe compare`: methods and seeds beside each other, from the same start."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.commands.shared import AsJson, Overrides, interrupted, make_folder

if TYPE_CHECKING:
    from cluster.compare.comparison import Comparison, Run
    from cluster.compare.runs import Progress

app = typer.Typer(rich_markup_mode=None)


@app.command()
def compare(
    recipe: Annotated[
        str, typer.Argument(metavar="COMPARISON_OR_RECIPE", help="A shipped comparison or recipe (`pickaxe recipes`), or a YAML file.")
    ],
    overrides: Overrides = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Variants, each METHOD[:KEY=VALUE,...]. [default: the comparison's, or reinforce,rloo,grpo,dr_grpo]"
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="0,1,...", help="[default: the comparison's, or 0,1,2]")] = None,
    parallel: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time; seconds are only comparable with 1.")] = 1,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Success of the column `episodes to`. [default: 0.9 of the best possible]")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of all runs and results. [default: runs/compare-NAME]")] = None,
    as_json: AsJson = False,
) -> None:
    """Train the variants of a recipe with several seeds, and say which is better and how sure that is.

    The comparison is paired: for each seed the cold start is trained once, and every variant begins with that policy, on the same
    tasks, with the same sampling seeds. The first variant is the yardstick of the others.

    Give the same command again after Ctrl-C or a failure: finished runs are not repeated. A run that fails is reported, and the
    others go on. Each run is a whole `pickaxe train` in a folder of its own, with its report.

    Writes comparison.png (success against episodes, and against seconds), comparison.md and comparison.json. Exit status: 0 all
    runs are finished, 1 some failed.

    A comparison is a YAML file with `base`, `seeds`, `overrides` and `variants` (name: list of key=value).

    \b
    pickaxe compare number-search
    pickaxe compare number-search --methods rloo,grpo --seeds 0 steps=50
    pickaxe compare my-recipe.yaml --methods reinforce,reinforce:baseline=value,ppo:clip_high=0.28,learner.lr=5e-4
    """
    from cluster.compare.comparison import load_comparison, runs

    comparison = load_comparison(recipe, methods, seeds, overrides or [])
    folder = out or Path("runs") / f"compare-{Path(recipe).stem}"
    planned = runs(comparison, folder)
    with interrupted("Interrupted; finished runs are kept, and the same command goes on with the others."):
        progress = _run(planned, comparison, folder, parallel)
    if any(run.variant in comparison.variants for run in progress.done):
        _results(comparison, planned, progress, folder, threshold, as_json=as_json)
    raise typer.Exit(1 if progress.failed else 0)


def _run(planned: "list[Run]", comparison: "Comparison", folder: Path, parallel: int) -> "Progress":
    from rich.console import Console
    from rich.live import Live

    from cluster.compare.runs import run_all
    from cluster.compare.view import closing_words, progress_lines

    console, begun, said = Console(stderr=True), time.monotonic(), set[Path]()
    live = Live(console=console, refresh_per_second=2, transient=True)

    def show(progress: "Progress") -> None:
        if console.is_terminal:
            live.update(progress_lines(planned, progress))
            return
        for run in planned:
            state = "finished" if run in progress.done else "failed" if run.folder in progress.failed else None
            if state and run.folder not in said:
                said.add(run.folder)
                print(f"{state}: {run.folder} ({len(said)} of {len(planned)})", file=sys.stderr, flush=True)

    make_folder(folder)
    with live:
        progress = run_all(planned, comparison.base, parallel, show)
    console.print(closing_words(progress, time.monotonic() - begun), markup=False, highlight=False, soft_wrap=True)
    return progress


def _results(
    comparison: "Comparison", planned: "list[Run]", progress: "Progress", folder: Path, threshold: float | None, *, as_json: bool
) -> None:
    from rich.console import Console

    from cluster.compare.stats import read_curve, table
    from cluster.compare.view import markdown, result_table, write_picture
    from cluster.sinks import read_metrics

    config = planned[0].config
    best = config.env.spec.best_success(config.env_params)
    limit = 0.9 * best if threshold is None else threshold
    curves = {
        name: {run.seed: read_curve(read_metrics(run.folder), run.config) for run in progress.done if run.variant == name}
        for name in comparison.variants
    }
    rows = table(curves, limit)
    title = f"{comparison.base} · {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else f"{comparison.base} · 1 seed"
    write_picture(folder / "comparison.png", title, curves, best)
    failures = {str(path): reason for path, reason in progress.failed.items()}
    (folder / "comparison.md").write_text(markdown(title, rows, limit, failures, "comparison.png"), encoding="utf-8")
    found = {
        "comparison": comparison.model_dump(mode="json"),
        "threshold": limit,
        "best_success": best,
        "rows": [asdict(row) for row in rows],
        "curves": {name: {str(seed): asdict(curve) for seed, curve in by_seed.items()} for name, by_seed in curves.items()},
        "failed": failures,
    }
    (folder / "comparison.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        Console().print(result_table(title, rows, limit))
        print(f"wrote comparison.png, comparison.md and comparison.json into {folder}")
