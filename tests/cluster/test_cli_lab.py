"""`pickaxe lab` as a person uses it: exact numbers, pictures that can be opened, and a page whose weights are those that train."""

import json
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest
import torch

from cluster.lab.weights import GUESSES, SECRET, Episodes, Weighted, by_position, lecture_episodes, spread, terminal_lines, weigh
from learner.enumerate import group_weights
from learner.methods import METHODS
from tests.cluster import command_line

pytestmark = pytest.mark.usefixtures("elsewhere")

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "lecture.json").read_text())
FIELDS = {"method", "toy", "group_size", "success_rate", "multiple", "cosine", "relative_variance"}


def status(arguments: Sequence[str]) -> int:
    """The exit status of `pickaxe lab ARGUMENTS`."""
    return command_line.status(["lab", *arguments])


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return lecture_episodes()


def _check_picture(path: Path) -> None:
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 400 and image.shape[1] > 1000
    assert len({tuple(colour) for colour in image.reshape(-1, image.shape[2])[::97].round(2).tolist()}) > 5, "the picture is empty"


@pytest.mark.parametrize("arguments", [[], ["--baseline", "0.75", "--out", "some/where"], ["--baseline", "0.5"]])
def test_bandit_prints_the_lecture_and_draws_it(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["bandit", *arguments]) == 0
    printed = capsys.readouterr().out
    for number in ("+0.75", "-0.25", "+0.375", "+0.125", "0.1875", "0.32476", "0.10825"):
        assert number in printed
    path = Path("some/where" if "--out" in arguments else "lab") / "bandit.png"
    assert f"wrote {path}" in printed
    _check_picture(path)


def test_unbiased_prints_every_row_of_the_table_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["unbiased", "--json", "--group-size", "2", "--group-size", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(set(row) == FIELDS for row in rows)
    assert {row["method"] for row in rows} == set(METHODS)
    assert {(row["toy"], row["group_size"]) for row in rows} == {(toy, size) for toy in ("fixed", "with_end") for size in (2, 3)}
    assert {row["success_rate"] for row in rows if row["toy"] == "fixed"} == {0.02, 0.1, 0.5, 0.9, 0.98}
    for row in rows:
        if not METHODS[row["method"]].biased_by:
            assert row["multiple"] == pytest.approx(1, abs=1e-9) and row["cosine"] == pytest.approx(1, abs=1e-9), row
        if row["method"] == "dr_grpo":
            assert row["multiple"] == pytest.approx(1 - 1 / row["group_size"], abs=1e-9), row
        if row["method"] == "self_distill" and row["toy"] == "fixed":
            assert row["multiple"] == 0 and row["cosine"] is None
        assert row["relative_variance"] > 0


def test_unbiased_shows_the_difficulty_bias_as_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["unbiased", "--json", "--method", "grpo", "--group-size", "8", "--toy", "fixed"]) == 0
    found = {row["success_rate"]: round(row["multiple"], 4) for row in json.loads(capsys.readouterr().out)}
    assert found == {0.02: 2.5732, 0.1: 2.3277, 0.5: 1.8557, 0.9: 2.3277, 0.98: 2.5732}
    assert status(["unbiased", "--method", "grpo", "--group-size", "8"]) == 0
    table = capsys.readouterr().out
    assert "E[g] against grad J: toy with_end, G = 8" in table
    assert all(number in table for number in ("2.5732", "2.3277", "1.8557"))


def test_a_group_of_one_leaves_out_what_compares_siblings(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["unbiased", "--json", "--group-size", "1", "--success-rate", "0.5"]) == 0
    captured = capsys.readouterr()
    alone = {name for name, row in METHODS.items() if not row.needs_group}
    assert {row["method"] for row in json.loads(captured.out)} == alone
    assert all(name in captured.err for name in set(METHODS) - alone)


def test_the_episodes_are_the_given_ones(episodes: Episodes) -> None:
    for golden, guesses, trajectory in zip(GOLDEN["trajectories_secret_11"], GUESSES, episodes.group.trajectories, strict=True):
        assert trajectory.task.data["secret"] == SECRET
        assert list(guesses) == golden["guesses"]
        assert [turn.text for turn in trajectory.turns] == [f"guess({guess})" for guess in golden["guesses"]]
        assert [turn.observation for turn in trajectory.turns] == golden["replies"]
        assert trajectory.reward == golden["reward"]
    assert episodes.pieces[0][episodes.prompt_tokens] == "guess(8)", "the tokens are readable"


def test_weights_of_two_successes_and_two_failures(episodes: Episodes) -> None:
    """Rewards 1 1 0 0, 8 sampled tokens each, C = 4 turns x 16 tokens: dr_grpo .5 / (4 * 64), grpo 1 / (4 * 8), rloo (2/3) / (4 * 64)."""
    expected = {"dr_grpo": 0.5 / 256, "grpo": 1 / 32, "grpo_simple": 1 / 4, "rloo": 2 / 3 / 256}
    for method, size in expected.items():
        for row, sign in zip(weigh(episodes, method).weights, (1, 1, -1, -1), strict=True):
            assert row == pytest.approx([sign * size] * 8, rel=1e-12)
    assert [spread(row) for row in weigh(episodes, "reinforce").weights] == ["+0.003906", "+0.003906", "0", "0"]


def test_the_last_guess_of_an_optimal_search_earns_a_critic_nothing(episodes: Episodes) -> None:
    """After 8 higher, 12 lower, 10 higher only 11 fits: V = 1 before the last guess, so that reward minus V is 0."""
    rows = weigh(episodes, "actor_critic").weights
    assert rows[0][-2:] == (0.0, 0.0) and rows[0][0] > 0
    assert all(weight < 0 for row in rows[2:] for weight in row)


class _Page(HTMLParser):
    """The token spans of each method's block: a weight if the token carries one, else None."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, list[float | None]] = {}
        self.links: list[str] = []
        self._method: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [value for name, value in attrs if name in ("src", "href") and value and not value.startswith("#")]
        assert tag != "script"
        if tag == "section":
            self._method = values["data-method"]
            self.tokens[self._method] = []
        elif tag == "span" and self._method and "t" in (values.get("class") or "").split():
            weight = values.get("data-w")
            assert ("given" in values["class"].split()) == (weight is None), "only sampled tokens carry a weight"
            if weight is not None:
                kind = "up" if float(weight) > 0 else "down" if float(weight) < 0 else "zero"
                assert values["class"] == f"t {kind}"
                assert f"weight {float(weight):+.6g}" in values["title"]
            self.tokens[self._method].append(None if weight is None else float(weight))


def test_the_page_has_the_weights_that_train_and_none_on_given_tokens(episodes: Episodes, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["weights", "--out", "out"]) == 0
    assert "wrote out/weights.html" in capsys.readouterr().out
    page = _Page()
    page.feed(Path("out/weights.html").read_text(encoding="utf-8"))
    assert list(page.tokens) == list(METHODS) and not page.links
    for method, shown in page.tokens.items():
        weighted = weigh(episodes, method)
        laid = [
            by_position(trajectory, row)[episodes.prompt_tokens :]
            for trajectory, row in zip(episodes.group.trajectories, weighted.weights, strict=True)
        ]
        assert shown == [weight for row in laid for weight in row], method
        if not weighted.plan.needs_judgement:
            logp_M = torch.full((sum(trajectory.sampled_tokens for trajectory in episodes.group.trajectories),), -1.5, dtype=torch.float64)
            trained = group_weights(episodes.group, weighted.plan, logp_M, episodes.generation_limit).tolist()
            assert [weight for weight in shown if weight is not None] == trained, method


def test_the_terminal_colours_only_sampled_tokens(episodes: Episodes) -> None:
    weighted: Weighted = weigh(episodes, "dr_grpo")
    head, *lines, _ = terminal_lines(episodes, weighted).renderables
    assert "dr_grpo" in head.plain
    for line, colour in zip(lines, ("green", "green", "red", "red"), strict=True):
        painted = [line.plain[span.start : span.end] for span in line.spans if colour in str(span.style)]
        assert len(painted) == 8 and all(text == ">" or text.startswith("guess(") for text in painted)


@pytest.mark.parametrize("toy", ["fixed", "with_end"])
def test_variance_is_drawn_and_tabled(toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["variance", "--toy", toy, "--group-size", "3", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    for name in ("none", "constant 0.5", "moving average", "group mean", "leave one out", "value"):
        assert name in printed
    assert "wrote out/variance.png" in printed
    _check_picture(Path("out/variance.png"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["unbiased", "--method", "gropo"], "unknown method 'gropo'; did you mean 'grpo'?"),
        (["weights", "--method", "drgrpo"], "did you mean 'dr_grpo'?"),
        (["unbiased", "--toy", "fixd"], "unknown toy 'fixd'; did you mean 'fixed'?"),
        (["variance", "--toy", "withend"], "did you mean 'with_end'?"),
        (["unbiased", "--method", "rloo", "--group-size", "1"], "group_size is 1"),
        (["unbiased", "--success-rate", "1.5"], "above 0 and below 1"),
        (["unbiased", "--group-size", "0"], "greater than or equal to 1"),
        (["bandit", "--baseline", "nan"], "expected a finite number"),
    ],
)
def test_bad_input_is_one_message_and_status_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and "Traceback" not in captured.err
    assert not list(Path().iterdir()), "nothing is written before the input is checked"


def test_a_folder_that_cannot_be_made_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").write_text("")
    assert status(["bandit", "--out", "taken"]) == 2
    assert "cannot make the folder taken" in capsys.readouterr().err


def test_the_lab_starts_neither_ray_nor_vllm() -> None:
    program = "import sys; from cluster.cli import main\ntry: main(['lab', 'weights', '--method', 'reinforce'])\nexcept SystemExit: pass\n"
    program += "print(sorted({'ray', 'vllm', 'deepspeed'} & set(sys.modules)))"
    path = {"PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=path, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"
