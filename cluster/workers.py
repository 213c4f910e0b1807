"""Where environments run that are not a generator's own: the workers, plain classes, and the host that spreads episodes over them."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import ray

from envs.contract import EnvFault, Message, Step, Task
from envs.isolated import EnvProcess, FaultKind

_T = TypeVar("_T")


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
