"""The command line as a person uses it: every mistake is one message and status 2, with no process started and nothing written."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from cluster.interrupt import postponed, terminated_as_interrupted, uninterrupted
from cluster.load_config import load_config, recipe_names
from cluster.run_folder import claim
from envs.catalog import find
from envs.errors import InputError
from tests.cluster.command_line import status

pytestmark = pytest.mark.usefixtures("elsewhere")

RECIPE = "number-search-tiny"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    assert status(["model", "tiny", str(folder), "--env", "number_search", "--seed", "1"]) == 0
    return folder


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one message of a refused command; nothing may lie in the working directory afterwards that was not there before."""
    before = sorted(Path().iterdir())
    assert status(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    assert sorted(Path().iterdir()) == before
    return captured.err.removeprefix("loading torch, ray and vLLM ...\n")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["learnr.lr=1"], "unknown key 'learnr': did you mean 'learner'?"),
        (["learner.lrr=1"], "unknown key 'learner.lrr': did you mean 'lr'?"),
        (["learner.lr=-1"], "learner.lr is -1: input should be greater than 0"),
        (["learner=3"], "learner is 3; expected a section with"),
        (["steps=abc"], "steps is 'abc': input should be a valid integer"),
        (["steps"], "cannot read the override 'steps'; expected key.sub=value"),
        (["steps=[1"], "cannot read the value of 'steps=[1' as YAML"),
        (["env.name=numbersearch"], "did you mean 'number_search'?"),
        (["env.params.numberz=4"], "unknown key 'env.params.numberz': did you mean 'numbers'?"),
        (["env.params.numbers=1"], "env.params.numbers is 1: input should be greater than or equal to 2"),
        (["algorithm.method=drgrpo"], "did you mean 'dr_grpo'?"),
        (["algorithm.method=dr_grpo", "rollout.group_size=1"], "set group_size to 2 or more, or use method reinforce"),
        (["learner.minibatches=3"], "cannot be split into learner.minibatches=3 equal parts"),
        (["rollout.max_turn_tokens=200", "rollout.max_context_tokens=128"], "no room for a prompt"),
        (["cold_start.player=orcale"], "is no player of number_search"),
        (["--overwrite"], "--overwrite needs --run-dir"),
    ],
)
def test_a_wrong_config_is_one_message(changes: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(["train", RECIPE, *changes], capsys)
    assert words in message and message.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"steps: [1", "is not valid YAML: expected"),
        (b"\xff\xfe", "is not valid YAML"),
        (b"- steps", "holds list; expected a mapping"),
        (b"env: 3", "env is 3; expected a section with name, params"),
    ],
)
def test_a_broken_recipe_file_is_one_message(content: bytes, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_bytes(content)
    message = refused(["train", "mine.yaml"], capsys)
    assert words in message and message.count("\n") == 1


def test_unknown_names_are_answered_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"did you mean '{RECIPE}'?" in refused(["train", "number-search-tnyi"], capsys)
    assert "did you mean 'dr_grpo'?" in refused(["explain", "drgrpo"], capsys)
    assert "no file absent.yaml" in refused(["train", "absent.yaml"], capsys)
    assert "did you mean 'oracle'?" in refused(["play", "number_search", "--player", "oracel"], capsys)
    assert "unknown key 'guesess': did you mean 'guesses'?" in refused(["play", "number_search", "--param", "guesess=3"], capsys)


def _break(folder: Path, how: str) -> None:
    match how:
        case "no config":
            (folder / "config.json").unlink()
        case "cut off":
            os.truncate(folder / "model.safetensors", 100_000)
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "tokenizer cut off":
            os.truncate(folder / "tokenizer.json", 100)
        case "no chat template":
            (folder / "chat_template.jinja").unlink()
        case "missing shard":
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00002-of-2.safetensors"}}))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no config", "lacks config.json"),
        ("cut off", "model.safetensors cannot be read"),
        ("no tokenizer", "lacks tokenizer"),
        ("tokenizer cut off", "tokenizer.json is not JSON"),
        ("no chat template", "has no chat template"),
        ("missing shard", "model-00002-of-2.safetensors cannot be read"),
    ],
)
def test_a_broken_model_is_refused_before_anything_starts(
    how: str, words: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    _break(tmp_path / "model", how)
    assert words in refused(["train", RECIPE, "model.path=model"], capsys)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["model.path=./absent"], "does not exist"),
        (["rollout.max_context_tokens=32"], "the prompt has"),
        (["rollout.max_turn_tokens=1"], "not one episode of number_search's oracle fits"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(changes: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(["train", RECIPE, *changes], capsys)
    assert words in message and message.count("\n") == 1


def test_a_context_longer_than_the_model_is_refused(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(["train", RECIPE, f"model.path={tiny_model}", "rollout.max_context_tokens=2048"], capsys)
    assert "reads at most 1023 tokens" in message and "set rollout.max_context_tokens=1023 or less" in message


def test_episodes_that_a_limit_cuts_are_mentioned() -> None:
    from cluster.checks.before_start import check_before_start

    assert check_before_start(load_config(RECIPE)) == []
    (advice,) = check_before_start(load_config(RECIPE, ["rollout.max_context_tokens=40"]))
    assert "are cut by a token limit and end as out_of_tokens" in advice and "rollout.max_context_tokens=40" in advice


def test_episodes_that_have_to_queue_for_the_engine_are_mentioned() -> None:
    from cluster.checks.before_start import check_before_start

    many = ["rollout.groups_per_step=33", "rollout.group_size=16", "learner.minibatches=3"]
    (advice,) = check_before_start(load_config(RECIPE, [*many, "cluster.generators=2"]))
    assert "a step gives a generator 272 episodes, but it samples generator.max_num_seqs=256 at" in advice
    assert check_before_start(load_config(RECIPE, [*many, "cluster.generators=2", "generator.max_num_seqs=272"])) == []


def test_a_folder_in_use_is_never_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.txt").write_text("two years of work")
    assert "thesis exists" in refused(["train", RECIPE, "--run-dir", "thesis"], capsys)
    assert "is not the folder of a run" in refused(["train", RECIPE, "--run-dir", "thesis", "--overwrite"], capsys)
    assert "thesis exists" in refused(["model", "tiny", "thesis"], capsys)
    assert "thesis exists" in refused(["model", "smollm2", "thesis"], capsys)
    assert "no environment of its own; name one with --env" in refused(["eval", "thesis"], capsys)
    assert Path("thesis/chapter.txt").read_text() == "two years of work"


def test_a_run_that_is_refused_late_leaves_no_folder() -> None:
    from cluster.supervise import run_training

    with pytest.raises(InputError, match="does not exist"):
        run_training(load_config(RECIPE, ["model.path=./absent"]), RECIPE, [], claim(RECIPE))
    assert not list(Path("runs").iterdir())


def test_evaluating_an_unfinished_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text("steps: 1")
    assert "has no exported policy under checkpoints/" in refused(["eval", "run"], capsys)


def test_recipes_are_the_shipped_files_and_all_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    import cluster

    recipes, comparisons = (
        sorted(path.stem for path in (Path(cluster.__file__).parent / name).iterdir()) for name in ("recipes", "comparisons")
    )
    assert status(["recipes"]) == 0
    names, descriptions = zip(*(line.split("  ", maxsplit=1) for line in capsys.readouterr().out.splitlines()), strict=True)
    assert [name.strip() for name in names] == [*recipes, *(f"compare {name}" for name in comparisons)]
    assert recipes == recipe_names()
    assert all(len(description.split()) > 4 for description in descriptions), "every recipe has a description"


def test_explain_prints_the_config_and_the_formula_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    from learner.config import AlgorithmConfig
    from learner.explain import formula
    from learner.plan import resolve

    assert status(["explain", RECIPE, "algorithm.clip_high=0.28", "learner.lr=1e-4"]) == 0
    printed = capsys.readouterr().out
    config = load_config(RECIPE, ["algorithm.clip_high=0.28", "learner.lr=1e-4"])
    assert yaml.safe_load(printed.partition("\n\n")[0]) == config.model_dump(mode="json")
    assert "the ratio > 1.28" in printed and f"C = {config.generation_limit}" in printed

    assert status(["explain", "rloo"]) == 0
    assert formula(resolve(AlgorithmConfig(method="rloo"))) in capsys.readouterr().out


def test_a_person_plays_to_the_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("nonsense\nguess(1)\nguess(2)\nguess(3)\n"))
    assert status(["play", "number_search", "--param", "numbers=3", "--seed", "0", "--param", "guesses=4"]) == 0
    printed = capsys.readouterr().out
    assert "Find the number in 1-3." in printed and "Guesses: 4." in printed
    assert "No guess was found" in printed and "The episode ended: solved." in printed
    assert "best possible        1.000" in printed and "oracle player" in printed


def test_a_person_sees_the_state_of_a_crafting_world(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = find("crafting")
    task = next(spec.tasks(spec.params(levels="L3"), "train", 4))
    oracle = spec.players["oracle"](task, 0)
    lines = ["craft a wish", *(oracle.act(None) for _ in range(task.data["optimal"]))]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert status(["play", "crafting", "--param", "levels=L3", "--param", "eval_per_level=2", "--seed", "4"]) == 0
    printed = capsys.readouterr().out
    assert (
        "Goal: 2 wool ring   (0 made, 14 turns left" in printed and "> gather oak log x2" in printed and "0/1 wool hook, needs" in printed
    )
    assert "no such item ;" in printed and "The episode ended: solved." in printed


def test_a_person_may_leave(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("nonsense\n"))
    assert status(["play", "number_search"]) == 0
    assert "Left in the middle" in capsys.readouterr().out


def test_watching_the_oracle(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["play", "number_search", "--player", "oracle", "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "> guess(8)" in printed and "oracle player        0.938" in printed and "best possible        0.938" in printed


def test_light_commands_import_nothing_heavy() -> None:
    program = (
        "import sys\nfrom cluster.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'ray', 'vllm', 'transformers', 'deepspeed', 'matplotlib') if name in sys.modules])"
    )
    for arguments in (
        ["--help"],
        ["--version"],
        ["recipes"],
        ["explain", "grpo"],
        ["train", RECIPE, "steps=abc"],
        ["play"],
        ["compare", "x"],
        ["selfcheck", "x"],
    ):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", arguments


@pytest.mark.parametrize(
    ("module", "heavy"), [("cluster.supervise", ("vllm",)), ("cluster.workers", ("torch", "vllm", "transformers", "deepspeed"))]
)
def test_processes_import_what_they_use(module: str, heavy: Sequence[str]) -> None:
    """The controller never needs vLLM, and an environment worker nothing that takes seconds and hundreds of megabytes."""
    program = f"import sys, {module}\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_signals_end_a_run_once_and_never_its_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    done = False
    with pytest.raises(KeyboardInterrupt), postponed():
        os.kill(os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        done = True
    assert done
    assert signal.getsignal(signal.SIGTERM) is before
