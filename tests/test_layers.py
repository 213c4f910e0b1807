"""The architecture as the syntax trees have it: who imports whom, which library lives in which module, how long a file is."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("envs", "rollout", "learner", "cluster")
"""In the order of the imports: each may import itself and those before it."""
FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
HOMES = {
    "ray": {path.as_posix() for path in FILES if path.parts[0] == "cluster"},
    "deepspeed": {"learner/engine.py"},
    "vllm": {
        "rollout/vllm_parts.py",
        "rollout/weight_receiver.py",
        "cluster/weights.py",
    },
}
LONGEST_FILE = 250
# Parsed before any test runs: Python 3.11 fails to parse if the garbage collector logs an earlier test's leftovers in the middle of it.
TREES = {path: ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in FILES}


def imports(path: Path) -> Iterator[str]:
    """The full names that a file imports anywhere, inside functions too; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path} has a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_itself_and_those_before_it(package: str) -> None:
    later = set(PACKAGES[PACKAGES.index(package) + 1 :])
    wrong = [(str(path), name) for path in FILES if path.parts[0] == package for name in imports(path) if name.split(".")[0] in later]
    assert wrong == []


def test_environments_need_nothing_but_the_standard_library_and_pydantic() -> None:
    allowed = {*sys.stdlib_module_names, "pydantic", "envs"}
    wrong = [(str(path), name) for path in FILES if path.parts[0] == "envs" for name in imports(path) if name.split(".")[0] not in allowed]
    assert wrong == []


@pytest.mark.parametrize("library", HOMES)
def test_a_large_library_is_known_in_few_files(library: str) -> None:
    found = {path.as_posix() for path in FILES if any(name.split(".")[0] == library for name in imports(path))}
    assert found, "a library that nobody imports needs no rule"
    assert found <= HOMES[library]
    assert library == "ray" or found == HOMES[library], "a rule for a file that does not need it any more"


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {module(path) for path in FILES}
    graph = {module(path): {name for name in imports(path) if name in known and name != module(path)} for path in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_only_one_file_makes_actors() -> None:
    found = {
        path.as_posix()
        for path in FILES
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.Attribute) and node.attr == "remote" and isinstance(node.value, ast.Name) and node.value.id == "ray"
    }
    assert found == {"cluster/actors.py"}


def test_no_file_is_long() -> None:
    lengths = {path.as_posix(): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}
