"""Demonstrations as a file: chat messages, one episode a line, that `pickaxe demos` writes and a cold start or any SFT tool reads.

    {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}, {"role": "tool", ...}, ...],
     "reward": 1.0, "end": "solved", "env": "number_search", "task": "number_search/16-4/11", "level": "16-4", "player": "plausible"}

Only `messages` must be there. They end with the last action: what the environment answers to it, nobody has to predict.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cluster.config import RunConfig
from envs.contract import End, Env, EnvSpec, Message, Player, Step, Task
from envs.errors import InputError
from envs.transcript import Broken
from envs.transcript import play as play_transcript
from rollout.chat import ChatEncoder
from rollout.play import demonstrate, sampling_seed
from rollout.types import Group

ROLES = ("system", "user", "assistant", "tool")


def record(spec: EnvSpec, params: BaseModel, task: Task, player: str, seed: int, observation_role: str) -> dict[str, Any]:
    """One episode as a line of the file. Raises `InputError` if the environment breaks its contract."""
    try:
        transcript = play_transcript(spec, params, task, spec.players[player](task, seed).act)
    except Broken as broken:
        raise InputError(f"environment {spec.name} broke its contract; `pickaxe env {spec.name}` checks it: {broken.violation}") from None
    messages = [{"role": message.role, "content": message.content} for message in transcript.messages]
    for action, step in zip(transcript.actions, transcript.steps, strict=True):
        messages += [{"role": "assistant", "content": action}, {"role": observation_role, "content": step.observation}]
    end = transcript.steps[-1].end
    assert end is not None
    return {
        "messages": messages[:-1],
        "reward": sum(step.reward for step in transcript.steps),
        "end": end.value,
        "env": spec.name,
        "task": task.id,
        "level": task.level,
        "player": player,
    }


def player_seed(seed: int, number: int) -> int:
    """The seed of the player of episode `number`: a file and a cold start without one have the same episodes."""
    return sampling_seed(seed, "demonstration", number)


def read_demos(path: Path) -> list[dict[str, Any]]:
    """The episodes of a file. Raises `InputError` that names the line, what it has and what was expected."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"cold_start.file={str(path)!r} cannot be read: {reason}; `pickaxe demos ENV --out FILE` writes one") from error
    episodes = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            episode = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number} is not JSON ({error}); expected one object a line") from None
        if problem := _problem(episode):
            raise InputError(f"{path}, line {number}: {problem}")
        episodes.append(episode)
    if not episodes:
        raise InputError(f"{path} has no episode; expected one JSON object a line, as `pickaxe demos` writes them")
    return episodes


def _problem(episode: Any) -> str | None:
    messages = episode.get("messages") if isinstance(episode, dict) else None
    if not isinstance(messages, list) or not messages:
        return "expected an object with messages, a list of {role, content}"
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            return f"a message is {message!r:.80}; expected role, one of {', '.join(ROLES)}, and content, a text"
    roles = [message["role"] for message in messages]
    first = roles.index("assistant") if "assistant" in roles else 0
    turns = roles[first:]
    if first == 0 or turns[-1] != "assistant" or any((role == "assistant") != (place % 2 == 0) for place, role in enumerate(turns)):
        return f"roles are {', '.join(roles)}; expected a prompt, then assistant and observation in turn, an assistant's message at the end"
    if not isinstance(episode.get("reward", 1.0), int | float) or episode.get("end", "solved") not in [end.value for end in End]:
        return f"reward is {episode.get('reward')!r} and end is {episode.get('end')!r}; expected a number and how an episode ends"
    return None


def demonstrations_of(episodes: Sequence[Mapping[str, Any]], config: RunConfig, encoder: ChatEncoder) -> Iterator[Group]:
    """The recorded episodes through the same encoding as played ones, each a group of one."""
    for number, episode in enumerate(episodes):
        name = str(episode.get("task", f"demonstration/{number}"))
        task = Task(id=name, env=config.env.name, split="train", level=str(episode.get("level", "")), seed=0)
        spec = replace(config.env.spec, make=lambda _, episode=episode: _Recorded(episode), players={"file": _player(episode)})
        seed = player_seed(config.seed, number)
        yield demonstrate(task, spec, "file", seed=seed, number=number, config=config.rollout, encoder=encoder)


class _Recorded(Env):
    """The environment's side of a recorded episode."""

    def __init__(self, episode: Mapping[str, Any]) -> None:
        messages = [Message(role=message["role"], content=message["content"]) for message in episode["messages"]]
        first = next(place for place, message in enumerate(messages) if message.role == "assistant")
        self._prompt = tuple(messages[:first])
        self._answers = iter(messages[first + 1 :: 2])
        reward = float(episode.get("reward", 1.0))
        end = End(episode.get("end", End.SOLVED if reward >= 1 else End.FAILED))
        self._last = Step(observation="", reward=reward, end=end)

    def start(self) -> tuple[Message, ...]:
        return self._prompt

    def step(self, text: str) -> Step:
        answer = next(self._answers, None)
        return self._last if answer is None else Step(observation=answer.content)

    def summary(self) -> Mapping[str, float]:
        return {}


def _player(episode: Mapping[str, Any]) -> Any:
    actions = [message["content"] for message in episode["messages"] if message["role"] == "assistant"]
    return lambda task, seed: _Reciter(actions)


class _Reciter(Player):
    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = iter(actions)

    def act(self, observation: str | None) -> str:
        return next(self._actions)
