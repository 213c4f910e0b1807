"""The commands `pickaxe lab ...`: small exact experiments about the method table, in seconds, without Ray and vLLM."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.commands.shared import make_folder
from envs.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from learner.lab import BiasRow

app = typer.Typer(help="Small exact experiments: what every method does to the gradient.", no_args_is_help=True, rich_markup_mode=None)

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for what is written; made if it is not there.")]
MethodName = Annotated[str | None, typer.Option(metavar="M", help="One method alone. [default: every row of the table]")]
_PULLS = 16
_RATES = (0.02, 0.1, 0.5, 0.9, 0.98)
_PLOTTED = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)


@app.command("bandit")
def bandit_command(
    baseline: Annotated[float | None, typer.Option(metavar="B", help="A third baseline beside 0 and 0.5.")] = None,
    out: Out = Path("lab"),
) -> None:
    """Show what a baseline does: the two-armed bandit, with every sample of the gradient.

    Arm A pays 1 and has probability sigmoid(-1.1), rounded to 0.25; arm B pays 0. Writes bandit.png.

    \b
    pickaxe lab bandit
    pickaxe lab bandit --baseline 0.25
    """
    from learner.lab import bandit, bandit_gradients

    baselines = tuple(dict.fromkeys((0.0, 0.5, *(() if baseline is None else (baseline,)))))
    found = bandit(baselines)
    from rich.console import Console

    from cluster.lab.pictures import write_bandit
    from cluster.lab.tables import bandit_table

    pulls = {b: bandit_gradients(b, episodes=1) for b in baselines}
    means = {b: bandit_gradients(b, episodes=_PULLS) for b in baselines}
    path = make_folder(out) / "bandit.png"
    write_bandit(path, pulls, means, _PULLS, found.true_gradient)
    Console().print(bandit_table(found))
    print(f"wrote {path}")


@app.command()
def unbiased(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of tables.")] = False,
    method: MethodName = None,
    group_size: Annotated[list[int] | None, typer.Option(min=1, max=16, metavar="G", help="Repeat for more. [default: 2 and 8]")] = None,
    toy: Annotated[str | None, typer.Option(metavar="TOY", help="fixed or with_end. [default: both]")] = None,
    success_rate: Annotated[
        list[float] | None, typer.Option(metavar="P", help="Repeat for more. [default: .02 .1 .5 .9 .98 on fixed, .5 on with_end]")
    ] = None,
) -> None:
    """Compare the expected gradient E[g] of every method with grad J, by exact enumeration through the code that trains.

    \b
    multiple           E[g] . grad J / |grad J|^2: 1 means unbiased, if the cosine is 1 too
    cosine             of the angle between E[g] and grad J; null (a dash) where E[g] is 0
    relative_variance  E|g - E g|^2 / |grad J|^2, for the gradient g of one group of G episodes

    Toy fixed: every episode is one token. Toy with_end: episodes have 1, 2 or 3 tokens, so that a Z that looks at lengths turns
    the gradient. A group is one step, sampled by the current weights; C = 1. The imitating methods see the policy's own samples.

    \b
    pickaxe lab unbiased
    pickaxe lab unbiased --method grpo --group-size 8 --json
    """
    names = _methods(method)
    rows, left_out = _bias_rows(names, group_size or [2, 8], toy, success_rate)
    if left_out:
        print(f"left out at group size 1, where there are no siblings to compare: {', '.join(left_out)}", file=sys.stderr)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1, allow_nan=False))
    else:
        from rich.console import Console

        from cluster.lab.tables import bias_tables

        Console().print(*bias_tables(rows), sep="\n")
        print("column p=...: the multiple at success rate p, E[g] = multiple * grad J where the cosine is 1; green: exactly grad J")


@app.command()
def weights(method: MethodName = None, out: Out = Path("lab")) -> None:
    """Show the weight that every method gives the tokens of the same four episodes: only the weight differs.

    Green makes a token likelier, red less likely, grey was not sampled and never has a weight; < and > stand for the tokens that
    begin and end a turn. Writes weights.html.

    \b
    pickaxe lab weights
    pickaxe lab weights --method dr_grpo
    """
    names = _methods(method)
    from rich.console import Console

    from cluster.lab.page import write_page
    from cluster.lab.weights import lecture_episodes, terminal_lines, weigh

    episodes = lecture_episodes()
    weighted = [weigh(episodes, name) for name in names]
    path = make_folder(out) / "weights.html"
    write_page(path, episodes, weighted)
    console = Console(highlight=False)
    for one in weighted:
        console.print(terminal_lines(episodes, one))
    print(f"wrote {path}: open it in a browser")


@app.command()
def variance(
    group_size: Annotated[int, typer.Option(min=2, max=16, metavar="G", help="Episodes of one group.")] = 8,
    toy: Annotated[str, typer.Option(metavar="TOY", help="fixed or with_end.")] = "with_end",
    out: Out = Path("lab"),
) -> None:
    """Compare baselines by the variance of the gradient of one group, exactly, at several success rates. Writes variance.png.

    The number is noise to signal, E|g - E g|^2 / |E g|^2. It does not change when the gradient is scaled: the group mean's is
    shorter by 1 - 1/G, and its noise to signal is that of leave one out, because it is the same estimator but for that factor.

    \b
    pickaxe lab variance
    pickaxe lab variance --toy fixed --group-size 4
    """
    from learner.lab import variance_rows

    rows = [row for rate in _PLOTTED for row in variance_rows(toy, group_size=group_size, success_rate=rate)]
    from rich.console import Console

    from cluster.lab.pictures import write_variance
    from cluster.lab.tables import variance_table

    path = make_folder(out) / "variance.png"
    write_variance(path, rows, toy)
    shown = [row for row in rows if row.success_rate in _RATES]
    Console().print(variance_table(shown, f"Noise to signal of the gradient: toy {toy}, G = {group_size}"))
    print(f"wrote {path}")


def _bias_rows(names: list[str], sizes: list[int], toy: str | None, success_rates: list[float] | None) -> tuple[list["BiasRow"], list[str]]:
    """The rows, and the methods that a group of one has no row of."""
    from learner.lab import TOYS, bias_row
    from learner.methods import METHODS

    if toy is not None and toy not in TOYS:
        raise InputError(f"unknown toy {toy!r}; {did_you_mean(toy, list(TOYS))}")
    # One method alone is not left out: its row says why it cannot be.
    alone = [name for name in names if METHODS[name].needs_group] if 1 in sizes and len(names) > 1 else []
    rows = []
    for size in dict.fromkeys(sizes):
        for toy_name in TOYS if toy is None else (toy,):
            rates = success_rates or (_RATES if toy_name == "fixed" else (0.5,))
            asked = [name for name in names if size > 1 or name not in alone]
            rows += [bias_row(name, toy_name, group_size=size, success_rate=rate) for name in asked for rate in dict.fromkeys(rates)]
    return rows, alone


def _methods(method: str | None) -> list[str]:
    from learner.methods import METHODS

    if method is None:
        return list(METHODS)
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; {did_you_mean(method, list(METHODS))}")
    return [method]
