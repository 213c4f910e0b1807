"""The environments by name. A new one is one line here, or no line at all: `package.module:ATTRIBUTE` names anybody's own."""

import importlib

from envs import crafting, number_search, textcraft_synth
from envs.contract import EnvSpec
from envs.errors import InputError, did_you_mean

ENVS: dict[str, EnvSpec] = {
    "crafting": crafting.SPEC,
    "number_search": number_search.SPEC,
    "textcraft_synth": textcraft_synth.SPEC,
}


def find(name: str) -> EnvSpec:
    """The environment called `name`: a key of `ENVS`, or `package.module:ATTRIBUTE`, an `EnvSpec` in an importable module.

    Raises `InputError` if there is no such name, module or attribute, or if the attribute is not an `EnvSpec`.
    """
    if name in ENVS:
        return ENVS[name]
    if ":" not in name:
        raise InputError(
            f"there is no environment {name!r}: {did_you_mean(name, list(ENVS))} (your own environment is named package.module:ATTRIBUTE)"
        )
    path, _, attribute = name.partition(":")
    if not path or path.startswith(".") or not attribute:
        raise InputError(f"environment {name!r} is not of the form package.module:ATTRIBUTE, such as my_envs.maze:SPEC")
    try:
        module = importlib.import_module(path)
    except (ImportError, SyntaxError) as error:
        raise InputError(
            f"environment {name!r}: importing {path} failed with {type(error).__name__}: {error}; "
            "check the spelling, and that its folder is on PYTHONPATH or its package is installed"
        ) from error
    if not hasattr(module, attribute):
        choices = [key for key, value in vars(module).items() if isinstance(value, EnvSpec)]
        hint = did_you_mean(attribute, choices) if choices else "the module has no EnvSpec at all"
        raise InputError(f"environment {name!r}: {path} has no attribute {attribute!r}: {hint}")
    spec = getattr(module, attribute)
    if not isinstance(spec, EnvSpec):
        raise InputError(f"environment {name!r} is of type {type(spec).__name__}; expected an envs.contract.EnvSpec")
    return spec
