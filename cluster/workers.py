"""What runs inside the actors beside a generator: a learner rank that can push, and an environment worker. Plain classes."""

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray

from cluster.config import RunConfig
from cluster.weights import FanOut, LearnerSource, free_port, open_sender
from envs.contract import EnvFault, Message, Step, Task
from envs.isolated import EnvProcess, FaultKind
from envs.metrics import Metric, Reduction
from learner.config import AlgorithmConfig, LearnerConfig
from learner.learner import Learner, Start
from learner.types import Judgement, MicroBatch

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the learner ranks meet: the address of rank 0's machine and a free port on it."""

    address: str
    port: int


class LearnerRank:
    """One rank of the learner together with its end of the weight push."""

    def __init__(self, model: str, config: RunConfig, rank: int) -> None:
        self._model = model
        self._config = config
        self._rank = rank

    def meet(self) -> Rendezvous:
        """Where the ranks can meet on this machine; asked of rank 0."""
        # A Ray cluster of this run's own is on one machine, and nothing of it needs to be reached from outside.
        address = ray.util.get_node_ip_address() if self._config.cluster.address else "127.0.0.1"
        return Rendezvous(address=address, port=free_port(address))

    def join(self, meet: Rendezvous) -> None:
        """Load the model and join the other ranks; all ranks call it."""
        self._meet = meet
        self._learner = Learner(
            self._model,
            self._config.learner,
            self._config.algorithm,
            temperature=self._config.rollout.temperature,
            total_steps=1,
            seed=self._config.seed,
            rank=self._rank,
            world_size=self._config.cluster.learners,
            address=meet.address,
            port=meet.port,
            timeout_s=self._config.cluster.step_timeout_s,
        )

    def connect(self, generators: Sequence[Any], backend: str) -> None:
        """Open the weight transfer to all generators; all ranks call it."""
        cluster, parallel = self._config.cluster, self._config.generator.tensor_parallel
        self._client = FanOut(generators, tensor_parallel=parallel, timeout_s=cluster.push_timeout_s)
        self._sender = open_sender(
            LearnerSource(self._learner),
            self._client,
            backend=backend,
            rank=self._rank,
            host=self._meet.address,
            world_size=1 + len(generators) * parallel,
            timeout_s=cluster.push_timeout_s,
            chunk_bytes=cluster.push_chunk_mib * 2**20,
        )

    def begin(self, algorithm: AlgorithmConfig, learner: LearnerConfig, total_steps: int, start: Start = "here") -> None:
        """Begin a phase of training (see `Learner.begin`)."""
        self._learner.begin(algorithm, learner, total_steps, start)

    def judge(self, rows: Sequence[Sequence[int]], masks: Sequence[Sequence[int]]) -> dict[int, Judgement]:
        """This rank's share of what credit needs to know of the rows (see `Learner.judge`)."""
        return self._learner.judge(rows, masks)

    def train(self, steps: Sequence[Sequence[MicroBatch]]) -> list[dict[str, Metric]]:
        """Take optimiser steps: for each, this rank's micro-batches."""
        return [self._learner.train_step(micro_batches) for micro_batches in steps]

    def push(self, version: int) -> dict[str, Metric]:
        """Push the weights to every generator as `version`; returns when all sample with them, within `cluster.push_timeout_s`."""
        begun = time.perf_counter()
        self._sender.send_weights()
        if self._rank == 0:
            self._client.commit(version)
        size = sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in self._learner.weights_metadata())
        seconds = time.perf_counter() - begun
        return {
            "sync/push_s": Metric(value=seconds, reduction=Reduction.MAX),
            "sync/push_gb_per_s": Metric(value=size / seconds / 1e9, reduction=Reduction.MIN),
        }

    def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """The learner's log-probs of every row's tokens but the first, at temperature 1."""
        return self._learner.logprobs(rows)

    def export(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder; all ranks call it."""
        self._learner.export(folder)

    def close(self) -> None:
        """Leave all groups."""
        self._learner.close()


class EnvWorker:
    """Hosts episodes' environments in killable processes, with a deadline on every call.

    An episode's calls run in order on its process's one thread, so that a `start` which its caller gave up can never follow
    its `finish` and leave an environment behind. A call whose episode was finished while it waited is not made at all: a group
    that hangs costs the time of the calls in progress, not of those in the queue.
    """

    def __init__(self, processes: int, deadline_s: float) -> None:
        self._slots = [_Slot(EnvProcess(deadline_s=deadline_s)) for _ in range(processes)]
        self._home: dict[str, _Slot] = {}

    async def ready(self) -> int:
        """How many processes are up."""
        return len(self._slots)

    async def start(self, episode: str, task: Task) -> tuple[Message, ...]:
        """Build and start an environment on the process with the fewest waiting calls, then episodes."""
        slot = self._home[episode] = min(self._slots, key=lambda slot: (slot.waiting, slot.episodes))
        slot.episodes += 1
        return await self._call(episode, lambda: slot.process.start(episode, task))

    async def step(self, episode: str, text: str) -> Step:
        """Take one action."""
        slot = self._home.get(episode)
        if slot is None:
            raise EnvFault(FaultKind.LOST, "the environment worker was started again since the episode began")
        return await self._call(episode, lambda: slot.process.step(episode, text))

    async def finish(self, episode: str) -> Mapping[str, float]:
        """Forget the environment and return its summary."""
        slot = self._home.pop(episode, None)
        if slot is None:
            return {}
        slot.episodes -= 1
        return await slot.run(lambda: slot.process.close(episode))

    async def _call(self, episode: str, call: Callable[[], _T]) -> _T:
        def unless_finished() -> _T:
            if episode not in self._home:
                raise EnvFault(FaultKind.LOST, "the episode was given up before this call began")
            return call()

        return await self._home[episode].run(unless_finished)

    async def close(self) -> None:
        """Kill all processes."""
        for slot in self._slots:
            slot.thread.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(slot.process.shutdown)


class _Slot:
    """One killable process, its thread, and how busy it is."""

    def __init__(self, process: EnvProcess) -> None:
        self.process = process
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.waiting = self.episodes = 0

    async def run(self, call: Callable[[], _T]) -> _T:
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, call)
        finally:
            self.waiting -= 1


class RemoteHost:
    """An `EnvHost` over environment workers: an episode stays with the worker that started it.

    The sharp deadline is the worker's own, on each call when its turn comes. `timeout_s` is for a worker that does not answer
    at all and counts the waiting too, so it is the step's. A dead worker is started again by Ray; its episodes are `lost`.
    """

    def __init__(self, workers: Sequence[Any], timeout_s: float) -> None:
        self._workers = workers
        self._timeout_s = timeout_s
        self._turn = itertools.count()
        self._home: dict[str, Any] = {}

    async def start(self, episode: str, task: Task) -> tuple[Message, ...]:
        """See `EnvHost`."""
        worker = self._home[episode] = self._workers[next(self._turn) % len(self._workers)]
        # A worker that died before it answered has lost nothing yet: the call waits until Ray has started it again.
        messages: tuple[Message, ...] = await self._answer(worker.start.options(max_task_retries=-1).remote(episode, task))
        return messages

    async def step(self, episode: str, text: str) -> Step:
        """See `EnvHost`."""
        step: Step = await self._answer(self._home[episode].step.remote(episode, text))
        return step

    async def close(self, episode: str) -> Mapping[str, float]:
        """See `EnvHost`."""
        worker = self._home.pop(episode, None)
        if worker is None:
            return {}
        summary: Mapping[str, float] = await self._answer(worker.finish.remote(episode))
        return summary

    async def _answer(self, call: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(call, self._timeout_s)
        except EnvFault:
            raise
        except TimeoutError:
            raise EnvFault("timed_out", f"the environment worker gave no answer in {self._timeout_s:g} s") from None
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, EnvFault) else EnvFault("raised", str(cause)) from error
        except ray.exceptions.RayActorError as error:
            raise EnvFault("died", "the environment worker died") from error
