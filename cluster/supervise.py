"""A training seen from outside: its folder, its log, how it ends, and what it leaves behind however it ends."""

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.actors import RunError
from cluster.config import RunConfig
from cluster.interrupt import INTERRUPTED, terminated_as_interrupted, uninterrupted
from cluster.loop import train
from cluster.run_folder import RunFolder
from cluster.show.live import LiveView
from cluster.show.report import final_words, summary_table, write_report
from cluster.sinks import read_metrics
from envs.errors import InputError

_log = logging.getLogger("pickaxe")
_VERSIONS = ("pickaxe", "torch", "transformers", "ray", "deepspeed")


def run_training(
    config: RunConfig, recipe: str, overrides: Sequence[str], run_dir: Path, advice: Sequence[str] = (), *, overwrite: bool = False
) -> int:
    """Train in a folder of its own and return the exit status: 0, 1 if the run failed, 130 if it was interrupted.

    `advice` is what `cluster.checks.before_start` had to say; it is repeated where it stays in view. Raises `InputError`, with nothing left
    behind, for what a person can put right before the run has begun.
    """
    console, begun = Console(), time.perf_counter()
    with (
        closing(RunFolder.create(run_dir, config, overwrite=overwrite)) as folder,
        _logging_to(folder.path / "log.txt"),
        terminated_as_interrupted(),
    ):
        _log.info("recipe %s, overrides %s, %s", recipe, list(overrides), ", ".join(f"{name} {version(name)}" for name in _VERSIONS))
        try:
            summary = _train(config, recipe, folder, advice, console)
        except InputError:
            _log.exception("bad input")
            _leave(folder, begun, discard=True)
            raise
        except (KeyboardInterrupt, SystemExit):
            with uninterrupted():
                _log.warning("interrupted")
                console.print(
                    f"\nInterrupted; every process has ended. {_leave(folder, begun, discard=True)}", markup=False, highlight=False
                )
            return INTERRUPTED
        except RunError as error:
            _log.exception("the run failed")
            _say_failed(error, folder, _leave(folder, begun, discard=False))
            return 1
        except Exception:
            _log.exception("a fault of pickaxe")
            _leave(folder, begun, discard=False)
            raise
    console.print(summary_table(summary))
    console.print(final_words(folder.path, summary), markup=False, highlight=False, soft_wrap=True)
    return 0


def _train(config: RunConfig, recipe: str, folder: RunFolder, advice: Sequence[str], console: Console) -> dict[str, Any]:
    title = f"{recipe} · {config.algorithm.method} · seed {config.seed}"
    with LiveView(config.steps, title=title, console=console) as view:
        for sentence in advice:
            _log.warning(sentence)
            view.message(f"note: {sentence}")
        summary = {"recipe": recipe} | train(config, folder, view)
        folder.write_summary(summary)
        view.phase("writing the report")
        write_report(folder.path)
    _log.info("finished: %s", summary)
    return summary


def _leave(folder: RunFolder, begun: float, *, discard: bool) -> str:
    """Make the best of a run that did not finish and say what that is: curve and report of its steps.

    Without a single measurement there is nothing to keep, and `discard` deletes the folder, so that the same command runs again.
    """
    records = read_metrics(folder.path) if (folder.path / "metrics.jsonl").is_file() else []
    if records:
        write_report(folder.path)
        return final_words(folder.path, {"steps": records[-1]["step"], "seconds": time.perf_counter() - begun})
    if discard:
        shutil.rmtree(folder.path)
        return f"Nothing had been measured, so {folder.path} was deleted."
    return ""


def _say_failed(error: RunError, folder: RunFolder, left: str) -> None:
    lines = [line for line in str(error).splitlines() if line.strip()]
    words = lines if len(lines) < 4 else [lines[0], lines[-1]]  # between them is a traceback, which the log has
    console = Console(stderr=True)
    console.print("\n".join([f"pickaxe: {words[0]}", *words[1:]]), markup=False, highlight=False, soft_wrap=True)
    console.print(f"The whole story is in {folder.path / 'log.txt'}. {left}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Python's log and warnings go to the file, and to the file only, while the body runs."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
