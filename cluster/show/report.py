"""What is left of a run for a person: curve.png, report.html, the summary table and the last words on the screen."""

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from rich.table import Table

from cluster.show.curve import read_summary, run_title, write_curve
from cluster.show.format import MISSING, count, duration, fixed, number
from cluster.show.report_page import choose, rows_table, tile, time_split, transcript
from cluster.show.transcripts import read_trajectories
from cluster.sinks import read_metrics

__all__ = ["final_words", "summary_rows", "summary_table", "write_curve", "write_report"]

_ARTEFACTS = (
    ("report.html", "the report: open it in a browser"),
    ("curve.png", "success, dead groups and entropy against step"),
    ("summary.json", "the final numbers"),
    ("metrics.jsonl", "every metric, one line a step"),
    ("tensorboard", "the same for TensorBoard"),
    ("trajectories", "transcripts with mask, log-probs and credit a token"),
    ("checkpoints", "the policy as Hugging Face folders, for pickaxe eval or model.path"),
    ("config.yaml", "the configuration that ran"),
    ("log.txt", "the log"),
)
_BY_LEVEL = "eval/success/"


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The final numbers as pairs of a name and a value that a person reads; what is missing is a dash."""

    def change(name: str) -> str:
        before, after = number(summary, f"{name}_before"), number(summary, name)
        return fixed(after, ".4f") if before is None else f"{before:.4f} → {fixed(after, '.4f')}"

    levels = [name.removeprefix(_BY_LEVEL) for name in summary if name.startswith(_BY_LEVEL) and not name.endswith("_before")]
    return [
        ("success, sampled", change("eval/success")),
        *((f"success, sampled, {level}", change(f"{_BY_LEVEL}{level}")) for level in levels),
        ("success, greedy", change("eval/success_greedy")),
        ("best possible success", fixed(number(summary, "env/best_success"), ".4f")),
        ("steps", count(number(summary, "steps"))),
        ("episodes", count(number(summary, "episodes"))),
        ("training time", duration(number(summary, "train_seconds"))),
        ("total time", duration(number(summary, "seconds"))),
        ("memory at most, in GiB", fixed(number(summary, "memory/peak_gib"), ".2f")),
        ("largest gap of a weight push", fixed(number(summary, "sync/probe_max_abs_diff_worst"), ".1e")),
    ]


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table that is printed when a run ends."""
    table = Table(title=run_title(Path("run"), summary), title_style="bold", title_justify="left", show_header=False, border_style="cyan")
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    return table


def final_words(run_dir: Path, summary: Mapping[str, Any]) -> str:
    """Where everything of a run lies, with paths relative to the working directory where that is possible."""
    run_dir = Path(run_dir)
    resolved = run_dir.resolve()
    shown = resolved.relative_to(Path.cwd()) if resolved.is_relative_to(Path.cwd()) else resolved
    there = [(shown / name, words) for name, words in _ARTEFACTS if (run_dir / name).exists()]
    width = max((len(str(path)) for path, _ in there), default=0)
    lines = [f"{count(number(summary, 'steps'))} steps in {duration(number(summary, 'seconds'))}. Everything lies in {shown}:"]
    lines += [f"  {str(path).ljust(width)}  {words}" for path, words in there]
    return "\n".join(lines)


def write_report(run_dir: Path) -> Path:
    """Write report.html, one file without any address in it, into the run folder and return its path; draws curve.png too.

    Raises `InputError` if the folder has no metrics.jsonl. Everything else that is missing is left out.
    """
    run_dir = Path(run_dir)
    records, summary = read_metrics(run_dir), read_summary(run_dir)
    assets = files("cluster") / "assets"
    script = (assets / "report.js").read_text(encoding="utf-8")
    config = run_dir / "config.yaml"
    page = Template((assets / "report.html").read_text(encoding="utf-8")).substitute(
        title=escape(run_title(run_dir, summary)),
        subtitle=escape(f"run {run_dir.resolve().name} · {records[-1]['step'] if records else 0} steps recorded"),
        tiles=_tiles(summary),
        curve=base64.b64encode(write_curve(run_dir).read_bytes()).decode("ascii"),
        summary=rows_table(summary_rows(summary)),
        times=time_split(records),
        transcripts=_transcripts(run_dir / "trajectories"),
        config=escape(config.read_text(encoding="utf-8")) if config.is_file() else MISSING,
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    )
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _tiles(summary: Mapping[str, Any]) -> str:
    """The five numbers that are looked at first."""

    def outcome(label: str, name: str) -> str:
        before = number(summary, f"{name}_before")
        return tile(label, fixed(number(summary, name)), "" if before is None else f"{before:.3f} before")

    episodes, seconds = number(summary, "episodes"), number(summary, "train_seconds")
    rate = episodes / seconds if episodes is not None and seconds else None
    return "".join(
        (
            outcome("success, sampled", "eval/success"),
            outcome("success, greedy", "eval/success_greedy"),
            tile("best possible", fixed(number(summary, "env/best_success"), ".4g"), "of any policy"),
            tile("training time", duration(seconds), f"{count(number(summary, 'steps'))} steps"),
            tile("episodes", count(episodes), f"{count(rate)} a second"),
        )
    )


def _transcripts(folder: Path) -> str:
    """A few trajectories of the first and of the last saved step."""
    saved = sorted((int(path.stem), path) for path in folder.glob("*.jsonl") if path.stem.isdecimal())
    if not saved:
        return '<div class="soft">No trajectories were saved.</div>'
    legend = (
        '<p class="legend">Tokens that the policy sampled are coloured by their credit: <span class="t up">more of this</span> '
        '<span class="t down">less of this</span>; given tokens are grey. Point at a token for its numbers.</p>'
    )
    parts = [legend]
    for step, path in saved[:1] + saved[1:][-1:]:
        trajectories = read_trajectories(path)
        chosen = choose(trajectories)
        parts.append(f"<h3>Step {step}: {len(chosen)} of {len(trajectories)} trajectories</h3>")
        parts += [transcript(trajectory, opened=position == 0) for position, trajectory in enumerate(chosen)]
    return "".join(parts)
