"""What can be known before any process starts: is the model whole, does it chat, does an episode fit into its context.

The same mistakes would show inside the processes too, a minute later and after a folder was written.
"""

import importlib.util
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from cluster.config import RunConfig
from cluster.demos import read_demos
from cluster.playable import playable
from cluster.prepare import policy_tokenizer
from envs.contract import End, EnvSpec, Task
from envs.errors import InputError
from learner.model import check_folder
from rollout.chat import ChatEncoder, load_encoder
from rollout.episode import Episode
from rollout.play import demonstrate

_TASKS = 8


def check_before_start(config: RunConfig) -> list[str]:
    """Check model, tokenizer and context; raises `InputError`, and returns advice on what runs but may not be meant."""
    if config.output.tracker != "none" and importlib.util.find_spec(config.output.tracker) is None:
        raise InputError(
            f"output.tracker is {config.output.tracker}, which is not installed; install it (pip install {config.output.tracker}) "
            "or set output.tracker=none: metrics.jsonl and TensorBoard are written in any case"
        )
    if config.cold_start.episodes and config.cold_start.file is not None:
        check_demos(Path(config.cold_start.file), config.env.name)
    role = config.model.observation_role
    if config.model.path is None:
        encoder = ChatEncoder(policy_tokenizer(config), observation_role=role)
    else:
        check_model(config.model.path, config.rollout.max_context_tokens)
        encoder = load_encoder(config.model.path, observation_role=role)
    return check_fit(config, encoder) + check_room(config)


def check_demos(path: Path, env: str) -> None:
    """Raise `InputError` if the file of demonstrations cannot be read or is of another environment."""
    others = {str(episode["env"]) for episode in read_demos(path) if episode.get("env", env) != env}
    if others:
        raise InputError(f"{path} has episodes of {', '.join(sorted(others))}; expected those of env.name={env}")


def check_room(config: RunConfig) -> list[str]:
    """Advice if a generator cannot sample all episodes of its share of a step at the same time."""
    groups = math.ceil(config.rollout.groups_per_step / config.cluster.generators)
    episodes, room = groups * config.rollout.group_size, config.generator.max_num_seqs
    if episodes <= room:
        return []
    return [
        f"a step gives a generator {episodes} episodes, but it samples generator.max_num_seqs={room} at the same time and the others wait "
        f"in its queue; set generator.max_num_seqs={episodes}, or more cluster.generators, if memory allows"
    ]


def check_model(path: str, max_context_tokens: int) -> None:
    """Raise `InputError` if a file of the model folder is missing or broken, or its positions end before the context does."""
    check_folder(path)
    for file in sorted(Path(path).glob("*.json")):
        try:
            json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{file} is not JSON ({error}); the file is broken, copy the model again") from None
    for file in _weight_files(Path(path)):
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} cannot be read ({error}); the file is missing or cut off, copy the model again") from None
    longest = longest_context(path)
    if longest is not None and longest < max_context_tokens:
        raise InputError(
            f"model {path} reads at most {longest} tokens, but rollout.max_context_tokens is {max_context_tokens}; "
            f"set rollout.max_context_tokens={longest} or less"
        )


def _weight_files(folder: Path) -> Iterator[Path]:
    """The weights that are there, and those that an index says should be."""
    yield from sorted(folder.glob("*.safetensors"))
    for index in folder.glob("*.safetensors.index.json"):
        yield from sorted(folder / name for name in set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))


def longest_context(path: str) -> int | None:
    """The longest episode in tokens that the model can play; None if its config does not say. Raises `InputError` without a config.

    One position stays free, because the engine asks for one token more when it scores a whole episode.
    """
    try:
        settings = AutoConfig.from_pretrained(path).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"model {path} cannot be read: {error}. Expected a Hugging Face folder or hub name; check the spelling") from error
    positions: int | None = getattr(settings, "max_position_embeddings", None)
    return positions and positions - 1


def check_fit(config: RunConfig, encoder: ChatEncoder) -> list[str]:
    """Play scripted episodes through the encoder: do the prompt, an action and a whole episode fit their token limits?

    Raises `InputError` if a prompt does not, or if not one episode of the environment's best player does.
    """
    with playable(config) as spec:
        return _check_fit(config, spec, encoder)


def _check_fit(config: RunConfig, spec: EnvSpec, encoder: ChatEncoder) -> list[str]:
    limits = config.rollout
    tasks = [task for split in ("train", "eval") for task in itertools.islice(spec.tasks(config.env_params, split, config.seed), _TASKS)]
    if not any(task.split == "eval" for task in tasks):
        raise InputError(f"environment {config.env.name} has no task in its eval split; a run needs one to say how good the policy is")
    if config.dead_groups.hint and spec.hint is not None:
        for task in tasks:
            longest = Episode(
                task=task,
                encoder=encoder,
                max_turn_tokens=limits.max_turn_tokens,
                max_context_tokens=limits.max_context_tokens,
                hint=spec.hint(task),
            )
            longest.begin(spec.make(task).start())
    cut = {player: _cut_short(config, spec, encoder, tasks, player) for player in spec.players}
    spec.make(tasks[0]).start()
    action = spec.players["oracle"](tasks[0], 0).act(None)
    sizes = (
        f"rollout.max_turn_tokens={limits.max_turn_tokens} (an action such as {action!r} takes "
        f"{len(encoder.action(action))}) or rollout.max_context_tokens={limits.max_context_tokens} is too small "
        f"for the {spec.max_turns(config.env_params)} turns of an episode"
    )
    if cut["oracle"] == len(tasks):
        raise InputError(f"not one episode of {spec.name}'s oracle fits the token limits, so no policy could learn: {sizes}; raise it")
    if any(cut.values()):
        words = ", ".join(f"{count} of {len(tasks)} episodes of the {player} player" for player, count in cut.items() if count)
        return [f"{words} are cut by a token limit and end as {End.OUT_OF_TOKENS.value}: {sizes}"]
    return []


def _cut_short(config: RunConfig, spec: EnvSpec, encoder: ChatEncoder, tasks: list[Task], player: str) -> int:
    groups = (
        demonstrate(task, spec, player, seed=number, number=number, config=config.rollout, encoder=encoder)
        for number, task in enumerate(tasks)
    )
    return sum(group.trajectories[0].end.truncated for group in groups)
