"""The README's table is the code's table, and its commands exist."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from cluster.cli import app
from cluster.compare.comparison import load_comparison
from cluster.load_config import load_config, recipe_names
from learner.methods import METHODS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def commands(program: str) -> list[list[str]]:
    blocks = re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(program + " ")]


def test_the_method_table_is_the_table_that_runs() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", README, flags=re.MULTILINE)
    shown = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    assert list(shown) == list(METHODS)
    for name, row in METHODS.items():
        assert shown[name] == [row.returns, row.baseline, row.scale, row.normaliser, row.drift, row.data], name


@pytest.mark.parametrize("words", commands("pickaxe"), ids=lambda words: " ".join(words[:3]))
def test_every_command_of_the_readme_exists(words: list[str]) -> None:
    known = get_command(app).commands  # type: ignore[attr-defined]
    assert words[1] in known
    options = {option for parameter in known[words[1]].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options | {"--help"}
    if words[1] == "train":
        load_config(words[2], [word for word in words[3:] if "=" in word])
    if words[1] == "compare":
        load_comparison(words[2])
    if words[1] == "explain":
        assert words[2] in recipe_names() or words[2] in METHODS


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert named and named <= targets


def test_every_file_that_the_readme_names_exists() -> None:
    for name in re.findall(r"\b(?:envs|rollout|learner|cluster)/\w+\.py", README):
        assert (ROOT / name).is_file(), name


def test_the_overrides_that_the_readme_names_are_keys() -> None:
    overrides = re.findall(r"\b((?:cluster|learner)\.\w+=\d+)", README)
    assert len(overrides) >= 4
    load_config("number-search-tiny", overrides)
