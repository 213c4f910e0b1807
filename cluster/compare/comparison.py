"""What `pickaxe compare` compares: a base recipe, variants of it, seeds; and the runs that this takes.

The comparison is paired. For each seed there is one cold start, and every variant begins with the policy that it made, plays the
same tasks and samples with the same seeds; so a variant may change how is learned, never from what.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.config import RunConfig
from cluster.load_config import load_config, read_recipe, recipe_names
from envs.errors import InputError, did_you_mean
from learner.config import AlgorithmConfig
from learner.methods import METHODS

COMPARISONS = Path(__file__).parents[1] / "comparisons"
METHODS_BY_DEFAULT = "reinforce,rloo,grpo,dr_grpo"
START = "start"
"""The folder of the cold starts, beside those of the variants."""
_SHARED = ("seed", "env", "model", "cold_start")


class Comparison(BaseModel):
    """A comparison as its YAML file has it; `overrides` are for all runs, and each variant adds its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = Field("", description="One line that `pickaxe recipes` shows.")
    base: str = Field(description="The recipe that all runs share: a shipped one or the path of a YAML file.")
    overrides: tuple[str, ...] = Field((), description="Changes to the base, as `key.sub=value`.")
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1, description="One run of every variant for each seed.")
    variants: dict[str, tuple[str, ...]] = Field(min_length=1, description="Name and changes of each variant; the first is the yardstick.")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: `pickaxe train BASE OVERRIDES --run-dir FOLDER`. `needs` is the folder of the cold start that it begins with."""

    variant: str
    seed: int
    folder: Path
    overrides: tuple[str, ...]
    config: RunConfig
    needs: Path | None = None


def comparison_names() -> list[str]:
    """The shipped comparisons, sorted."""
    return sorted(path.stem for path in COMPARISONS.glob("*.yaml"))


def load_comparison(name: str, methods: str | None = None, seeds: str | None = None, overrides: Sequence[str] = ()) -> Comparison:
    """A shipped comparison or a YAML file with `variants`, or any recipe with `methods`; `methods` and `seeds` replace the file's.

    Raises `InputError` for unknown names, methods and keys, for seeds that are no whole numbers, and for a variant that changes what
    all must share.
    """
    tree = _read(name)
    if "variants" not in tree:
        tree = {"base": name, "variants": {}}
        methods = methods or METHODS_BY_DEFAULT
    try:
        if methods is not None:
            known = tree["variants"] if isinstance(tree["variants"], dict) else {}
            tree["variants"] = parse_methods(methods, known)
        if seeds is not None:
            tree["seeds"] = _parse_seeds(seeds)
        found = Comparison(**tree | {"overrides": [*tree.get("overrides", []), *overrides]})
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(f"{name}: {'.'.join(map(str, problem['loc']))} is {problem['input']!r}: {problem['msg'].lower()}") from None
    _check(found)
    return found


def parse_methods(text: str, known: Mapping[str, Sequence[str]] | None = None) -> dict[str, tuple[str, ...]]:
    """Variants from `METHOD[:KEY=VALUE,...],...`; a name in `known` stands for that variant. Keys without a dot are `algorithm`'s.

    >>> parse_methods("rloo,reinforce:baseline=value,learner.lr=1e-4")
    {'rloo': ('algorithm.method=rloo',), 'reinforce baseline=value lr=1e-4': ('algorithm.method=reinforce', 'algorithm.baseline=value', 'learner.lr=1e-4')}
    """  # noqa: E501
    parts: list[list[str]] = []
    for item in (item.strip() for item in text.split(",")):
        method, colon, change = item.partition(":")
        if "=" in method and parts:  # a further change of the method before it
            parts[-1].append(item)
        else:
            parts.append([method, *([change] if colon else [])])
    variants = {}
    for method, *changes in parts:
        if known and method in known and not changes:
            variants[method] = tuple(known[method])
            continue
        if method not in METHODS:
            raise InputError(f"unknown method {method!r} in {text!r}: {did_you_mean(method, [*{**(known or {}), **METHODS}])}")
        variants[" ".join([method, *map(_short, changes)])] = (f"algorithm.method={method}", *map(_full_key, changes))
    return variants


def runs(comparison: Comparison, out: Path) -> list[Run]:
    """The trainings in the order in which they are run: all cold starts, then seed after seed every variant.

    Raises `InputError` if one of them could not run, before any has begun.
    """
    base, begin, rest = comparison.base, [], []
    for seed in comparison.seeds:
        shared = (*comparison.overrides, f"seed={seed}")
        cold = load_config(base, shared).cold_start.episodes > 0
        start = out / START / f"seed-{seed}"
        if cold:
            first = (*shared, "steps=0")
            begin.append(Run(variant=START, seed=seed, folder=start, overrides=first, config=load_config(base, first)))
            shared += (f"model.path={json.dumps(str(start / 'checkpoints' / '0'))}", "cold_start.episodes=0")
        for name, changes in comparison.variants.items():
            overrides = (*shared, *changes)
            try:
                config = load_config(base, overrides)
            except InputError as error:
                raise InputError(f"variant {name!r}: {error}") from None
            folder = out / slug(name) / f"seed-{seed}"
            rest.append(Run(variant=name, seed=seed, folder=folder, overrides=overrides, config=config, needs=start if cold else None))
    return begin + rest


def slug(name: str) -> str:
    """The name of a variant's folder.

    >>> slug("reinforce, moving average")
    'reinforce-moving-average'
    """
    return re.sub(r"[^a-z0-9_.=]+", "-", name.lower()).strip("-.")


def _read(name: str) -> dict[str, Any]:
    if name in comparison_names():
        tree = yaml.safe_load((COMPARISONS / f"{name}.yaml").read_text(encoding="utf-8"))
        return dict(tree)
    if Path(name).suffix not in (".yaml", ".yml") and name not in recipe_names():
        known = [*comparison_names(), *recipe_names()]
        raise InputError(f"no comparison and no recipe {name!r}: {did_you_mean(name, known)}; or give the path of a .yaml file")
    return read_recipe(name)


def _parse_seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds is {text!r}; expected whole numbers with commas between them, such as 0,1,2") from None
    return seeds


def _short(change: str) -> str:
    key, equals, value = change.partition("=")
    return key.rpartition(".")[2] + equals + value


def _full_key(change: str) -> str:
    key = change.partition("=")[0]
    return f"algorithm.{change}" if key in AlgorithmConfig.model_fields else change


def _check(comparison: Comparison) -> None:
    if len(set(comparison.seeds)) < len(comparison.seeds) or min(comparison.seeds) < 0:
        raise InputError(f"seeds are {list(comparison.seeds)}; expected different numbers of at least 0")
    slugs = [slug(name) for name in comparison.variants]
    if len({*slugs, START}) <= len(slugs) or not all(slugs):
        raise InputError(f"variants {list(comparison.variants)} need folders of different names, none of them {START!r}; rename one")
    for name, changes in comparison.variants.items():
        for change in changes:
            if change.partition("=")[0].partition(".")[0] in _SHARED:
                raise InputError(
                    f"variant {name!r} changes {change!r}, but all variants share {', '.join(_SHARED)}: else it is another task, and "
                    "their difference says nothing about the methods. Set it for all, as an override of the comparison"
                )
