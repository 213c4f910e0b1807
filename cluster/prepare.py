"""What a run needs before it starts: the policy's folder, demonstrations, and the probe of the attestation."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from cluster.config import RunConfig
from cluster.playable import playable
from envs.contract import Task
from envs.errors import InputError
from learner.model import check_folder
from learner.tiny import build_tiny
from rollout.chat import ChatEncoder
from rollout.play import demonstrate, sampling_seed
from rollout.tiny_tokenizer import train_tokenizer
from rollout.types import Group

_PROBE_ROWS, _PROBE_TOKENS = 4, 256
_TEXT_EPISODES = 256


def prepare_model(config: RunConfig, run_dir: Path) -> str:
    """The folder or hub name of the policy to start from; without `model.path` the tiny policy is built in the run folder."""
    if config.model.path is not None:
        check_folder(config.model.path)
        return config.model.path
    folder = run_dir / "model"
    build_policy(config, folder)
    return str(folder)


def build_policy(config: RunConfig, folder: Path) -> None:
    """Write the tiny policy of `model.tiny` for the config's environment. Raises `InputError` if the folder is not empty."""
    shape = config.model.tiny
    build_tiny(folder, policy_tokenizer(config), shape.model_copy(update={"seed": shape.seed + config.seed}))


def policy_tokenizer(config: RunConfig) -> PreTrainedTokenizerFast:
    """The tiny policy's tokenizer, trained on what is said in the config's environment."""
    return train_tokenizer(environment_texts(config), vocab_size=config.model.tiny_vocab)


def train_tasks(config: RunConfig) -> Iterator[Task]:
    """The environment's own endless stream of training tasks; what RL steps take of it is up to `cluster.curriculum.stream`."""
    return config.env.spec.tasks(config.env_params, "train", config.seed)


def eval_tasks(config: RunConfig) -> list[Task]:
    """The held-out (or exhaustive) tasks that the policy is evaluated on."""
    return list(itertools.islice(config.env.spec.tasks(config.env_params, "eval", config.seed), config.eval.max_tasks))


def environment_texts(config: RunConfig) -> Iterator[str]:
    """Everything that is said in a few hundred scripted episodes: what the tiny policy's tokenizer is trained on."""
    with playable(config) as spec:
        for number, task in enumerate(itertools.islice(train_tasks(config), _TEXT_EPISODES)):
            env = spec.make(task)
            act = spec.players["plausible" if number % 2 else "random"](task, number).act
            yield from (message.content for message in env.start())
            observation = None
            for _ in range(spec.max_turns(config.env_params)):
                action = act(observation)
                step = env.step(action)
                yield from (action, step.observation)
                if step.end is not None:
                    break
                observation = step.observation
            else:
                raise InputError(
                    f"environment {spec.name} (task {task.id}) did not end an episode within {spec.max_turns(config.env_params)} turns, "
                    "which its spec's max_turns says is the most; envs.check.check_env finds such faults"
                )


def demonstrations(config: RunConfig, encoder: ChatEncoder, count: int, player: str) -> list[Group]:
    """`count` episodes of a scripted player on training tasks, each a group of one."""
    tasks = itertools.islice(train_tasks(config), count)
    with playable(config) as spec:
        return [
            demonstrate(
                task,
                spec,
                player,
                seed=sampling_seed(config.seed, "demonstration", number),
                number=number,
                config=config.rollout,
                encoder=encoder,
            )
            for number, task in enumerate(tasks)
        ]


def probe(config: RunConfig, encoder: ChatEncoder) -> list[tuple[int, ...]]:
    """Token ids of a few real episodes, on which generators and learner must agree after every push."""
    episodes = demonstrations(config, encoder, _PROBE_ROWS, "random")
    return [group.trajectories[0].token_ids[:_PROBE_TOKENS] for group in episodes]
