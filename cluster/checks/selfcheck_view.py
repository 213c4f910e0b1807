"""A self-check as a person reads it."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.checks.selfcheck import LogprobCheck, SelfCheck


def selfcheck_report(title: str, found: SelfCheck) -> RenderableType:
    """Both tables and the verdict."""
    return Group(_steps(title, found), Text(""), _logprobs(found.logprobs), Text(""), _verdict(found))


def _steps(title: str, found: SelfCheck) -> Table:
    table = Table(title=f"one step, cut in other ways: {title}", title_style="bold", title_justify="left", border_style="cyan")
    table.add_column("the same rows")
    for name in ("ranks", "micro-batches", "parameters", "norm"):
        table.add_column(name, justify="right")
    table.add_column("")
    for step in found.steps:
        differences = (f"{value:.1e}" for value in (step.difference, step.norm_difference))
        table.add_row(step.name, str(step.ranks), str(step.micro_batches), *differences, _mark(step.passed))
    table.caption = (
        f"{found.episodes} episodes, {found.dtype}, ZeRO {found.zero_stage}. Largest difference of a parameter after the step, relative to "
        f"the largest update; of the gradient's norm, relative to it. At most {found.tolerance:g} is rounding. With SGD and no clipping: "
        "Adam and a clipped norm divide a wrong scale out."
    )
    table.caption_justify = "left"
    return table


def _logprobs(found: LogprobCheck) -> Table:
    table = Table(title="sampler and learner on the same tokens", title_style="bold", title_justify="left", border_style="cyan")
    table.add_column("tokens", justify="right")
    for name in ("largest gap", "mean gap", "ratio from", "to"):
        table.add_column(name, justify="right")
    table.add_column("")
    gaps = (f"{found.max_gap:.1e}", f"{found.mean_gap:.1e}", f"{found.min_ratio:.6f}", f"{found.max_ratio:.6f}")
    table.add_row(f"{found.tokens:,}", *gaps, _mark(found.passed))
    table.caption = f"|log-prob of the learner - of the sampler| in nats; at most learner.max_logprob_gap={found.tolerance:g}"
    table.caption_justify = "left"
    return table


def _verdict(found: SelfCheck) -> Text:
    words = Text()
    if found.left_out:
        words.append(f"note: {found.left_out}\n", "yellow")
    if not all(step.passed for step in found.steps):
        words.append(
            "The step depends on how it is cut: batch size or ranks would change what is learned. This is a fault of pickaxe.\n", "red"
        )
    if not found.logprobs.passed:
        words.append(
            "Sampler and learner give the same tokens different log-probs, so every probability ratio is wrong. In bfloat16 a gap of 0.05 "
            "is normal: raise learner.max_logprob_gap.\n",
            "red",
        )
    words.append("passed" if found.passed else "FAILED", "bold green" if found.passed else "bold red")
    return words


def _mark(passed: bool) -> Text:
    return Text("✓", "green") if passed else Text("✗", "bold red")
