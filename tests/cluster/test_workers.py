"""Environment workers: a hanging group costs itself, nothing is left behind, and a dead worker is started again."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil
import pytest
import ray

from cluster.actors import start_env_workers
from cluster.load_config import load_config
from cluster.workers import EnvWorker, RemoteHost
from envs.contract import EnvFault, Message, Step, Task
from rollout.chat import ChatEncoder
from rollout.config import RolloutConfig
from rollout.play import EnvHost, GroupFailure, play_group
from rollout.types import Group
from tests.envs import faulty
from tests.rollout.players import Writer
from tests.rollout.tokenizers import tokenizer

TASK = faulty.task_that_fails_at(None)
SHORT = RolloutConfig(max_turn_tokens=16, max_context_tokens=90)


class WorkerHost:
    """An `EnvHost` over one worker in this process."""

    def __init__(self, worker: EnvWorker) -> None:
        self._worker = worker

    async def start(self, episode: str, task: Task) -> tuple[Message, ...]:
        return await self._worker.start(episode, task)

    async def step(self, episode: str, text: str) -> Step:
        return await self._worker.step(episode, text)

    async def close(self, episode: str) -> Mapping[str, float]:
        return await self._worker.finish(episode)


async def groups(words: Sequence[str], host: EnvHost, size: int) -> list[Group | GroupFailure]:
    """One group a word, all at the same time, each of whose members writes its word every turn."""
    encoder = ChatEncoder(tokenizer())

    def group(number: int, word: str) -> Any:
        policy = Writer(encoder.end_id, lambda token_ids, sampling: encoder.action(word))
        return play_group(TASK, number, size=size, seed=5, config=SHORT, encoder=encoder, policy=policy, host=host)

    return list(await asyncio.gather(*(group(number, word) for number, word in enumerate(words))))


def test_a_group_that_hangs_in_every_member_costs_itself() -> None:
    deadline_s, size = 0.5, 8

    async def play() -> tuple[list[Group | GroupFailure], float]:
        worker = EnvWorker(2, deadline_s)
        begun = time.monotonic()
        results = await groups(["hang", "y", "y"], WorkerHost(worker), size)
        seconds = time.monotonic() - begun
        await worker.close()
        return results, seconds

    (hung, *whole), seconds = asyncio.run(play())
    assert isinstance(hung, GroupFailure) and hung.kind == "timed_out"
    assert all(isinstance(group, Group) and len(group.trajectories) == size for group in whole)
    # Each member may hang once before one of them has used its retry, on two processes at the same time.
    assert seconds < deadline_s * (size / 2 + 3)


def test_calls_of_an_episode_that_was_given_up_are_not_made() -> None:
    async def play() -> list[Any]:
        worker = EnvWorker(1, 10.0)
        await worker.start("slow", TASK)
        slow = asyncio.create_task(worker.step("slow", "slow 0.5"))
        await asyncio.sleep(0.1)
        starts = [asyncio.create_task(worker.start(name, TASK)) for name in "abc"]
        await asyncio.sleep(0.1)
        finished = [asyncio.create_task(worker.finish(name)) for name in "abc"]
        await slow
        outcomes = await asyncio.gather(*starts, *finished, return_exceptions=True)
        assert (await worker.step("slow", "y")).observation.endswith(" 2"), "its process was not disturbed"
        await worker.close()
        return outcomes

    outcomes = asyncio.run(play())
    assert all(isinstance(start, EnvFault) and start.kind == "lost" for start in outcomes[:3])
    assert outcomes[3:] == [{}] * 3


@pytest.fixture
def worker_of_ray() -> Iterator[Any]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    try:
        yield from start_env_workers(load_config("number-search-tiny", ["cluster.env_workers=1"]))
    finally:
        ray.shutdown()


def test_a_worker_answers_while_more_calls_wait_than_ray_runs_by_default(worker_of_ray: Any) -> None:
    processes = ray.get(worker_of_ray.ready.remote())
    busy = [f"busy{number}" for number in range(processes)]
    ray.get([worker_of_ray.start.remote(name, TASK) for name in busy])
    waiting = [worker_of_ray.step.remote(name, "slow 20") for name in busy]
    waiting += [worker_of_ray.start.remote(f"waiting{number}", TASK) for number in range(1200)]
    assert ray.get(worker_of_ray.ready.remote(), timeout=10) == processes
    done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
    assert not done


def test_a_worker_that_dies_is_started_again_and_its_episodes_are_played_again(worker_of_ray: Any) -> None:
    async def play() -> list[Group | GroupFailure]:
        host = RemoteHost([worker_of_ray], 60.0)
        await host.start("first", TASK)
        playing = asyncio.create_task(groups(["slow 0.2", "y"], host, 2))
        await asyncio.sleep(0.5)
        os.kill(_worker_pid(), signal.SIGKILL)
        results = await playing
        with pytest.raises(EnvFault, match="lost"):
            await host.step("first", "y")
        return results

    assert all(isinstance(group, Group) for group in asyncio.run(play()))


def _worker_pid() -> int:
    children = psutil.Process().children(recursive=True)
    (worker,) = [process for process in children if process.cmdline() and "ray::EnvWorker" in process.cmdline()[0]]
    return int(worker.pid)
