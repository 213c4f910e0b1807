"""Playing: one episode, the siblings of a group concurrently, and demonstrations by scripted players.

An environment that raises, hangs or dies costs its group, never the step: the episode is played again with the same seeds,
and if that fails too the WHOLE group is dropped and counted, because dropping one member would bias the group mean.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from envs.contract import Env, EnvFault, EnvSpec, Message, Step, Task
from envs.isolated import FaultKind
from rollout.chat import ChatEncoder
from rollout.config import RolloutConfig
from rollout.episode import Episode, PromptTooLong
from rollout.policy import Policy
from rollout.types import Completion, Departure, Group, Sampling, Trajectory

_T = TypeVar("_T")


class EnvHost(Protocol):
    """Where episodes' environments live: in this process or on an environment worker. Episode ids are never reused.

    Every method raises `EnvFault` if the environment fails: it raised, hung, died or answered garbage.
    """

    async def start(self, episode: str, task: Task) -> tuple[Message, ...]:
        """Build the environment of `task` and return its first messages."""
        ...

    async def step(self, episode: str, text: str) -> Step:
        """Take one action."""
        ...

    async def close(self, episode: str) -> Mapping[str, float]:
        """Forget the environment and return its summary."""
        ...


class LocalHost:
    """Environments in this process: the fast path of the built-in ones, which never block."""

    def __init__(self, find: Callable[[str], EnvSpec]) -> None:
        self._find = find
        self._envs: dict[str, Env] = {}

    async def start(self, episode: str, task: Task) -> tuple[Message, ...]:
        """See `EnvHost`."""
        env = self._envs[episode] = self._guard(lambda: self._find(task.env).make(task))
        return self._guard(env.start)

    async def step(self, episode: str, text: str) -> Step:
        """See `EnvHost`."""
        return self._guard(lambda: self._envs[episode].step(text))

    async def close(self, episode: str) -> Mapping[str, float]:
        """See `EnvHost`."""
        env = self._envs.pop(episode, None)
        return self._guard(env.summary) if env else {}

    def _guard(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except Exception as error:  # the supervised border of an episode: the error becomes data
            raise EnvFault(kind="raised", message=f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class GroupFailure:
    """A group that was dropped: one member's environment failed in every attempt, or the prompt is `too_long` for the context."""

    task: Task
    group: int
    kind: str
    message: str


def sampling_seed(*parts: int | str) -> int:
    """A 63-bit seed from the run's seed and an episode's coordinates, the same on every machine and under any hash seed."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


async def play(episode: Episode, name: str, policy: Policy, host: EnvHost, temperature: float) -> Trajectory:
    """Play one episode to its end. `name` identifies this attempt; raises `EnvFault` if the environment fails."""
    try:
        episode.begin(await host.start(name, episode.task))
        while episode.end is None and (budget := episode.budget()):
            seed = sampling_seed(episode.seed, len(episode.turns))
            sampling = Sampling(temperature=temperature, max_tokens=budget, seed=seed)
            text = episode.act(await policy.generate(tuple(episode.token_ids), sampling))
            if episode.end is None:
                episode.observe(await host.step(name, text))
    except BaseException:
        await _forget(name, host)
        raise
    return episode.finish(await host.close(name))


async def _forget(name: str, host: EnvHost) -> None:
    try:
        await host.close(name)
    except EnvFault:
        return  # its environment is gone already, which is what closing wants


async def all_or_none(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results of all calls, run concurrently; the first that raises ends the others before its error goes on."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def play_group(
    task: Task,
    group: int,
    *,
    size: int,
    seed: int,
    config: RolloutConfig,
    encoder: ChatEncoder,
    policy: Policy,
    host: EnvHost,
    temperature: float | None = None,
    common_noise: bool = False,
    hint: str | None = None,
    train_with_hint: bool = True,
) -> Group | GroupFailure:
    """Play `size` siblings of one task concurrently; `temperature` overrides the config's (0 for a greedy evaluation).

    With `common_noise` the sampling seeds do not depend on the group: sibling j then answers the same history with the same
    action in every group of the call, as one deterministic policy would.

    A `lost` episode (another one took their shared process down) is played again without spending an attempt: each loss needs
    a fault elsewhere, which spends one there, so this ends. The first member without attempts ends its siblings too.
    """

    heat = config.temperature if temperature is None else temperature

    async def member(number: int) -> Trajectory:
        retries = config.episode_retries
        for attempt in itertools.count():
            episode = Episode(
                task=task,
                encoder=encoder,
                max_turn_tokens=config.max_turn_tokens,
                max_context_tokens=config.max_context_tokens,
                group=group,
                member=number,
                seed=sampling_seed(seed, 0 if common_noise else group, number),
                hint=hint,
                train_with_hint=train_with_hint,
                departures=() if heat == config.temperature else (Departure.TEMPERATURE,),
            )
            try:
                # The attempt is part of the name: a late answer to an earlier attempt has nobody to reach.
                name = f"{seed}.{group}.{number}.{attempt}"
                return await play(episode, name, policy, host, heat)
            except EnvFault as fault:
                if fault.kind != FaultKind.LOST:
                    if retries == 0:
                        raise
                    retries -= 1
        raise AssertionError("unreachable: the attempts are counted without end")

    try:
        return Group(trajectories=tuple(await all_or_none(member(number) for number in range(size))))
    except EnvFault as fault:
        return GroupFailure(task=task, group=group, kind=fault.kind, message=fault.message)
    except PromptTooLong as error:
        return GroupFailure(task=task, group=group, kind="too_long", message=str(error))


def demonstrate(task: Task, spec: EnvSpec, player: str, *, seed: int, number: int, config: RolloutConfig, encoder: ChatEncoder) -> Group:
    """One episode of a scripted player as a group of one, through the same encoding that the policy uses.

    The player with this seed is a deterministic policy, so the log-probs are 0 and a ratio is pi / 1. Importance sampling from it is
    exact for what it writes and blind to the rest: its expectation is the part of the gradient that runs through these actions.
    Supervised learning reads none of them.
    """
    env = spec.make(task)
    act = spec.players[player](task, seed).act
    episode = Episode(
        task=task,
        encoder=encoder,
        max_turn_tokens=config.max_turn_tokens,
        max_context_tokens=config.max_context_tokens,
        group=number,
        seed=seed,
        departures=(Departure.PLAYER,),
    )
    episode.begin(env.start())
    observation = None
    while episode.end is None and (budget := episode.budget()):
        token_ids = encoder.action(act(observation))
        stopped = len(token_ids) <= budget
        taken = token_ids[:budget]
        completion = Completion(token_ids=taken, logp_old=(0.0,) * len(taken), first_version=-1, last_version=-1, stopped=stopped)
        text = episode.act(completion)
        if episode.end is None:
            step = env.step(text)
            observation = step.observation
            episode.observe(step)
    return Group(trajectories=(episode.finish(env.summary()),))
