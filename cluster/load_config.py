"""From a recipe and overrides to a `RunConfig`, with errors that a person can act on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from cluster.config import EnvConfig, RunConfig
from envs.catalog import find
from envs.contract import EnvSpec
from envs.errors import InputError, did_you_mean

RECIPES = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """The shipped recipes, sorted."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_title(recipe: str) -> str:
    """What a shipped recipe, a YAML file or a run folder is called in titles and names of folders."""
    return recipe if recipe in recipe_names() else Path(recipe).stem


def load_config(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a shipped recipe by name or a YAML file by path, apply `key.sub=value` overrides in order, validate.

    Values are YAML (`steps=10`, `learner.lr=1e-4`, `rollout.temperature=0.7`, `model.path=null`). Raises `InputError` for an
    unknown recipe or key (with the closest name), a value out of range, or a combination that cannot run (with the reason).
    """
    return override_config(read_recipe(recipe), overrides, recipe)


def override_config(tree: dict[str, Any], overrides: Sequence[str], source: str) -> RunConfig:
    """Apply `key.sub=value` overrides to a config tree and validate it; `source` names it in errors."""
    for override in overrides:
        _apply(tree, override)
    return parse_config(tree, source)


def parse_config(tree: dict[str, Any], source: str) -> RunConfig:
    """Validate a config tree; `source` names it in errors."""
    _check_keys(tree, RunConfig, "")
    env = tree.get("env", {})
    if isinstance(name := env.get("name", EnvConfig().name), str) and isinstance(params := env.get("params", {}), dict):
        parse_params(find(name), params, "env.params.")
    try:
        return RunConfig(**tree)
    except ValidationError as error:
        raise InputError(f"{source}: " + "; ".join(_explain(problem) for problem in error.errors())) from None


def parse_params(spec: EnvSpec, params: Mapping[str, Any], prefix: str = "") -> BaseModel:
    """An environment's settings; raises `InputError` for one that it does not have (with the closest) or that is out of range."""
    _check_keys(params, spec.params, prefix)
    try:
        return spec.params(**params)
    except ValidationError as error:
        raise InputError(f"{spec.name}: " + "; ".join(_explain(problem, prefix) for problem in error.errors())) from None


def read_values(assignments: Sequence[str]) -> dict[str, Any]:
    """`["numbers=32", "guesses=5"]` as a mapping with YAML values; dots make sections."""
    tree: dict[str, Any] = {}
    for assignment in assignments:
        _apply(tree, assignment)
    return tree


def dump_config(config: RunConfig) -> str:
    """The config as YAML that `load_config` reads back to an equal object."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def read_recipe(recipe: str) -> dict[str, Any]:
    """The tree of a shipped recipe by name or of a YAML file by path, not validated. Raises `InputError` if there is no such file."""
    path = RECIPES / f"{recipe}.yaml"
    if not path.is_file():
        path = Path(recipe)
        if path.suffix not in (".yaml", ".yml"):
            raise InputError(f"no recipe {recipe!r}: {did_you_mean(recipe, recipe_names())}; or give the path of a .yaml file")
        if not path.is_file():
            raise InputError(f"no file {recipe}; expected a shipped recipe ({', '.join(recipe_names())}) or the path of a .yaml file")
    try:
        tree = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid YAML: {_first_problem(error)}") from error
    if not isinstance(tree, dict):
        raise InputError(f"{path} holds {type(tree).__name__}; expected a mapping of config keys, such as `steps: 100`")
    return tree


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"cannot read the override {override!r}; expected key.sub=value, such as learner.lr=1e-4")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"cannot read the value of {override!r} as YAML: {_first_problem(error)}") from error
    if isinstance(value, str):
        value = _number(value)
    *parents, last = key.split(".")
    for parent in parents:
        if tree.get(parent) is None:
            tree[parent] = {}
        child = tree[parent]
        if not isinstance(child, dict):
            raise InputError(f"{key}: {parent} is a value, not a section")
        tree = child
    tree[last] = value


def _first_problem(error: Exception) -> str:
    """The reason in one line; a parser's own message draws the place over several."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} at line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
    return str(error)


def _number(text: str) -> str | float:
    # YAML 1.1 reads 1e-4 as a word; everybody who types it means the number.
    try:
        return float(text) if "e" in text.lower() else text
    except ValueError:
        return text


def section_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The config model that a key of `model` holds, if it is a section, which may be left out (`Section | None`)."""
    annotation = model.model_fields[key].annotation
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return kinds[0] if kinds else None


def _check_keys(tree: Mapping[str, Any], model: type[BaseModel], prefix: str) -> None:
    for key, value in tree.items():
        if key not in model.model_fields:
            raise InputError(f"unknown key {prefix + str(key)!r}: {did_you_mean(str(key), list(model.model_fields))}")
        section = section_of(model, key)
        if section is not None and not (value is None and model.model_fields[key].default is None):
            if not isinstance(value, dict):
                raise InputError(f"{prefix}{key} is {value!r}; expected a section with {', '.join(section.model_fields)}")
            _check_keys(value, section, f"{prefix}{key}.")


def _explain(problem: Any, prefix: str = "") -> str:
    where = prefix + ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if where == prefix:
        return str(message)
    return f"{where} is {problem['input']!r}: {message[0].lower() + message[1:]}"
