"""The tables of `pickaxe lab` in the terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from cluster.show.format import fixed
from learner.lab import Bandit, BiasRow, VarianceRow

_EXACT = 5e-10


def bandit_table(bandit: Bandit) -> Table:
    """One row an arm, then the expectation and the standard deviation of the sample gradients, one column a baseline."""
    table = Table(title="Two-armed bandit: samples of the gradient", title_justify="left", title_style="bold")
    for name in ("arm", "prob.", "slope", "reward", *(f"b = {baseline:g}" for baseline in bandit.mean)):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for arm in bandit.arms:
        samples = [f"{sample:+.5g}" for sample in arm.samples.values()]
        table.add_row(arm.name, f"{arm.probability:g}", f"{arm.slope:+.4g}", f"{arm.reward:g}", *samples)
    table.add_section()
    table.add_row("expectation", "", "", "", *(f"{mean:.4f}" for mean in bandit.mean.values()), style="bold")
    table.add_row("std", "", "", "", *(f"{std:.5f}" for std in bandit.std.values()), style="bold")
    table.caption = f"sample: (reward - b) * slope of log-prob\ntrue gradient p (1 - p) = {bandit.true_gradient:.4f}"
    return table


def bias_tables(rows: Sequence[BiasRow]) -> list[Table]:
    """One table a toy and group size: the multiple at each success rate; cosine and relative variance at the rate nearest to 0.5."""
    tables = []
    for toy, size in dict.fromkeys((row.toy, row.group_size) for row in rows):
        here = [row for row in rows if (row.toy, row.group_size) == (toy, size)]
        rates = sorted({row.success_rate for row in here})
        middle = min(rates, key=lambda rate: abs(rate - 0.5))
        title = rf"E\[g] against grad J: toy {toy}, G = {size}"  # the backslash: [g] is no markup
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, min_width=48, padding=(0, 0, 0, 1))
        table.add_column("method", no_wrap=True)
        for rate in rates:
            table.add_column(f"p={rate:g}", justify="right")
        table.add_column(f"cosine\np={middle:g}", justify="right")
        table.add_column(f"rel.var.\np={middle:g}", justify="right")
        for method in dict.fromkeys(row.method for row in here):
            by_rate = {row.success_rate: row for row in here if row.method == method}
            one = by_rate[middle]
            table.add_row(
                method,
                *(_multiple(by_rate[rate]) for rate in rates),
                fixed(one.cosine, ".4f"),
                fixed(one.relative_variance, ".4g"),
            )
        tables.append(table)
    return tables


def variance_table(rows: Sequence[VarianceRow], title: str) -> Table:
    """One row a baseline, one column a success rate; the smallest number of a column is green."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("baseline")
    rates = list(dict.fromkeys(row.success_rate for row in rows))
    smallest = {rate: min(row.noise_to_signal for row in rows if row.success_rate == rate) for rate in rates}
    for rate in rates:
        table.add_column(f"p={rate:g}", justify="right")
    for name in dict.fromkeys(row.baseline for row in rows):
        cells = []
        for row in rows:
            if row.baseline == name:
                best = row.noise_to_signal <= smallest[row.success_rate] * (1 + _EXACT)
                cells.append(f"[green]{row.noise_to_signal:.4g}[/green]" if best else f"{row.noise_to_signal:.4g}")
        table.add_row(name, *cells)
    return table


def _multiple(row: BiasRow) -> str:
    text = f"{row.multiple:.4f}".replace("-0.0000", "0.0000")
    unbiased = abs(row.multiple - 1) < _EXACT and row.cosine is not None and abs(row.cosine - 1) < _EXACT
    return f"[green]{text}[/green]" if unbiased else text
