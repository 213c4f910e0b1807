"""What a person sees of a run, made from real files: nothing is lost, nothing is trusted, nothing missing stops it."""

import io
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.image import imread
from rich.console import Console

from cluster.show.format import bar, count, duration, number, sparkline
from cluster.show.live import LiveView
from cluster.show.report import final_words, summary_table, write_curve, write_report
from cluster.show.report_page import choose, time_split
from cluster.show.transcripts import write_trajectories
from cluster.sinks import MetricSink
from tests.cluster.episodes import CREDITS, GROUP, HOSTILE, WORDS

SUMMARY = {
    "eval/success": 0.9,
    "eval/success_before": 0.48,
    "eval/success_greedy": 0.9375,
    "env/best_success": 0.9375,
    "steps": 30,
    "episodes": 7680,
    "train_seconds": 60.0,
    "seconds": 83.0,
    "recipe": "number_search",
    "method": "dr_grpo",
    "seed": 0,
}


def write_run(run: Path, steps: int = 30) -> None:
    with MetricSink(run) as sink:
        for step in range(1, steps + 1):
            success = 0.48 + 0.4 * step / steps
            metrics = {
                "rollout/success": success,
                "groups/dead_zero_fraction": 0.02,
                "groups/dead_one_fraction": 0.01 * step,
                "learner/entropy_nats": 1.0 / step,
                "time/generate_s": 0.5,
                "time/environment_s": 0.1,
                "time/learn_s": 0.25,
                "time/step_s": 1.0,
            }
            sink.write(step, metrics | ({"eval/success": success} if step % 10 == 0 else {}))
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    (run / "config.yaml").write_text(f"note: {HOSTILE}\n")
    write_trajectories(run / "trajectories" / "1.jsonl", [GROUP], CREDITS, lambda ids: "".join(WORDS[i] for i in ids))
    write_trajectories(run / "trajectories" / "30.jsonl", [GROUP])


def shown(view_steps: dict[int, dict[str, object]], total: int) -> str:
    """What the plain view writes."""
    out = io.StringIO()
    with LiveView(total, title="a run", console=Console(file=out)) as view:
        view.phase("starting \x1b[31m1 learner")
        for done in range(21):
            view.progress(done, 20, "cold start")
        for step, metrics in view_steps.items():
            view.step(step, metrics)
        view.message("saved\rcheckpoint")
    return out.getvalue()


def test_plain_output_has_every_step_and_no_control_characters() -> None:
    text = shown({step: {"rollout/success": step / 100} for step in range(1, 42)}, total=41)
    assert not re.search(r"[^\n\x20-\x7e\xa0-\uffff]", text)
    lines = text.splitlines()
    steps = [line.split()[0] for line in lines if re.match(r"\s+\d+/41\s", line)]
    assert steps == [f"{step}/41" for step in range(1, 42)]
    headers = [number for number, line in enumerate(lines) if line.lstrip().startswith("step ")]
    assert [later - earlier for earlier, later in pairwise(headers)] == [21, 21]
    assert "0.410" in next(line for line in lines if "41/41" in line)
    assert sum("cold start" in line for line in lines) == 11, "one line to begin with and one for each tenth"
    assert "savedcheckpoint" in text


@pytest.mark.parametrize("metrics", [{}, {"rollout/success": None, "time/step_s": "soon", "learner/lr": math.nan, "eval/success": True}])
def test_missing_and_broken_metrics_are_dashes(metrics: dict[str, object]) -> None:
    [line] = [line for line in shown({1: metrics}, total=2).splitlines() if "1/2" in line]
    assert set(line.split()[1:]) == {"–"}  # noqa: RUF001


@pytest.mark.parametrize("width", [48, 80, 120])
def test_the_panel_shows_the_last_step_at_any_width(width: int) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    console = Console(file=out, force_terminal=True, width=width, height=30, _environ={"TERM": "xterm-256color"})
    with LiveView(3, title="a [run]", console=console) as view:
        view.progress(1, 2, "cold [start]")
        view.step(1, {"rollout/success": 0.125, "eval/success": 0.75})
        view.step(2, {})
        view.message("[bold]not markup[/bold]")
        view.step(3, {"rollout/success": 0.625})
    out.seek(0)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.read())
    assert "[bold]not markup" in text and "cold [start]" in text
    last = text[text.rindex("╭") :]
    assert "0.625" in last and "0.750" in last
    assert all(len(line) <= width for line in last.splitlines())


def test_without_a_unicode_terminal_the_view_is_plain() -> None:
    buffer = io.BytesIO()
    out = io.TextIOWrapper(buffer, encoding="ascii", write_through=True)
    with LiveView(1, title="a · run", console=Console(file=out, force_terminal=True)) as view:
        view.step(1, {})
    assert b"\x1b" not in buffer.getvalue() and b"1/1" in buffer.getvalue()


def test_the_curve_is_a_picture_with_something_in_it(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = write_curve(tmp_path)
    pixels = imread(path)
    assert path.read_bytes().startswith(b"\x89PNG") and pixels.shape[1] > pixels.shape[0] > 400
    colours = {tuple(colour) for colour in (pixels[::2, ::2, :3].reshape(-1, 3) * 255).round().astype(int).tolist()}
    assert {(47, 158, 68), (25, 113, 194), (232, 89, 12)} & colours, "the success curves are not drawn"
    assert len(colours) > 50


def test_levels_have_a_line_in_the_curve_and_a_row_in_the_summary(tmp_path: Path) -> None:
    def colours(levels: list[str]) -> set[tuple[int, ...]]:
        run = tmp_path / str(len(levels))
        with MetricSink(run) as sink:
            for step in range(1, 30):
                sink.write(step, {f"level/{level}/success": 0.2 + 0.3 * place for place, level in enumerate(levels)})
        pixels = (imread(write_curve(run))[..., :3].reshape(-1, 3) * 255).round().astype(int)
        return {tuple(colour) for colour in pixels.tolist()}

    first, last = (0, 255, 255), (255, 0, 255)
    assert {first, last} <= colours(["L1", "L2", "L3"])
    assert not {first, last} & colours(["L1"]), "one level is the whole success"
    out = io.StringIO()
    levels = {"eval/success/L1": 0.75, "eval/success/L1_before": 0.5, "eval/success/L2": 0.25, "eval/success_low/L2": 0.125}
    Console(file=out).print(summary_table(SUMMARY | levels))
    rows = [line.split("│")[1:3] for line in out.getvalue().splitlines() if "sampled, " in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["success, sampled, L1", "0.5000 → 0.7500"],
        ["success, sampled, L2", "0.2500"],
    ]


class Page(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] and self.tags[-1][0] not in ("script", "style"):
            self.words.append(data)


def test_the_report_trusts_no_text_and_loads_nothing(tmp_path: Path) -> None:
    write_run(tmp_path)
    html = write_report(tmp_path).read_text()
    page = Page(html)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1 and tags.count("img") == 1, "a transcript became markup"
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "srcset")], (tag, attributes)
        assert (attributes.get("src") or "data:").startswith("data:")
    text = "".join(page.words)
    # Thrice in the task's name, in the token of the prompt, in the last observation, in the config: as words, not as markup.
    assert text.count(HOSTILE) >= 4
    assert "url(" not in html and "@import" not in html
    assert re.search(r"Content-Security-Policy\" content=\"default-src 'none'[^\"]*script-src 'sha256-", html)
    assert "0.4800 → 0.9000" in text and "number_search · dr_grpo · seed 0" in text


def test_sampled_tokens_of_the_report_say_everything(tmp_path: Path) -> None:
    write_run(tmp_path)
    tokens = [
        attributes for _, attributes in Page(write_report(tmp_path).read_text()).tags if (attributes.get("class") or "").startswith("t")
    ]
    told = [(token["class"], token["data-t"]) for token in tokens if "data-t" in token]
    assert ("t up", "token    40\nmask     1\nlog-prob -0.7000\nversion  3\ncredit   +0.5000") in told
    assert ("t down", "token    2\nmask     1\nlog-prob -0.0100\nversion  3\ncredit   -0.2500") in told
    assert ("t", "token    41\nmask     1\nlog-prob -1.5000\nversion  3..4\ncredit   +0.0000") in told
    assert ("t given", "token    9\nmask     0") in told
    assert len(told) == 4 * 9, "every token of both members of both saved steps"


def test_a_run_of_which_almost_nothing_is_known_still_has_a_report(tmp_path: Path) -> None:
    MetricSink(tmp_path).close()
    assert tmp_path.name in write_report(tmp_path).read_text()
    with MetricSink(tmp_path) as sink:
        sink.write(1, {})
    page = write_report(tmp_path).read_text()
    assert "No times were measured" in page and "No trajectories were saved" in page
    out = io.StringIO()
    Console(file=out).print(summary_table({}))
    assert out.getvalue().count("–") == 9  # noqa: RUF001


def test_time_inside_another_time_is_counted_once() -> None:
    split = time_split([{"time/generate_s": 0.5, "time/environment_s": 0.1, "time/learn_s": 0.25, "time/step_s": 1.0}])
    told = dict(re.findall(r'data-t="(\w+): ([\d.]+ s)"', split))
    assert told == {"generate": "0.40 s", "environment": "0.10 s", "learn": "0.25 s", "other": "0.25 s"}


def test_groups_that_carry_a_signal_are_shown_first() -> None:
    records = [{"group": group, "member": m, "reward": float(group == 1 and m == 3)} for group in (0, 1) for m in range(5)]
    assert [(record["group"], record["member"]) for record in choose(records, groups=1)] == [(1, 3), (1, 0), (1, 4)]


def test_final_words_name_only_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "a")
    words = final_words(Path("runs/a"), SUMMARY)
    assert words.startswith("30 steps in 1 min 23 s.") and "runs/a/metrics.jsonl" in words and "runs/a/tensorboard" in words
    assert str(tmp_path) not in words and "report.html" not in words and "checkpoints" not in words


def test_numbers_for_people() -> None:
    assert [count(value) for value in (0.0, 7.25, 345.4, 1234.0, 25600.0, 999_950.0, 4_560_000.0)] == [
        "0", "7.25", "345", "1,234", "25.6k", "1000k", "4.56M",
    ]  # fmt: skip
    assert [duration(value) for value in (0.0421, 0.51, 32.04, 59.96, 125.0, 3780.0)] == [
        "0.042 s", "0.51 s", "32.0 s", "1 min 00 s", "2 min 05 s", "1 h 03 min",
    ]  # fmt: skip
    assert sparkline([0.0, None, 0.5, 1.0], 3) == " ▅█" and bar(0.5, 3) == "█▌ "
    assert number({"a": True}, "a") is None and number({"a": math.inf}, "a") is None and number({"a": 0}, "a") == 0.0
