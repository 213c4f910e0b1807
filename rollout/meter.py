"""What one call of `Generator.play` takes, counted at the call itself: calls overlap when sampling runs ahead of learning."""

import time
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from envs.contract import Message, Step, Task
from envs.metrics import Metric, Reduction
from rollout.play import EnvHost
from rollout.policy import Policy
from rollout.types import Completion, Sampling

_T = TypeVar("_T")


class PlayClock:
    """Shares the seconds of a generator among the calls that play at the same time, so that the shares add up to the whole.

    Example: a call plays alone for 2 s, and another one beside it for the last second: their shares are 1.5 s and 0.5 s.
    """

    def __init__(self) -> None:
        self._shares: dict[Meter, float] = {}
        self._last = 0.0

    @contextmanager
    def running(self, meter: "Meter") -> Iterator[None]:
        """Give `meter` its share of the body's seconds."""
        self._deal()
        self._shares[meter] = 0.0
        try:
            yield
        finally:
            self._deal()
            meter.play_s = self._shares.pop(meter)

    def _deal(self) -> None:
        now = time.perf_counter()
        for meter in self._shares:
            self._shares[meter] += (now - self._last) / len(self._shares)
        self._last = now


class Meter:
    """The policy and the environments' host of one call of `play`, as they are, with their work counted."""

    def __init__(self, policy: Policy, host: EnvHost) -> None:
        self._policy = policy
        self._host = host
        self._waiting = 0
        self._since = 0.0
        self._asked = self._found = 0
        self.environment_s = self.play_s = 0.0

    async def generate(self, token_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """See `Policy`."""
        completion = await self._policy.generate(token_ids, sampling)
        self._asked += len(token_ids)
        self._found += completion.cached_tokens
        return completion

    async def start(self, episode: str, task: Task) -> tuple[Message, ...]:
        """See `EnvHost`."""
        return await self._timed(self._host.start(episode, task))

    async def step(self, episode: str, text: str) -> Step:
        """See `EnvHost`."""
        return await self._timed(self._host.step(episode, text))

    async def close(self, episode: str) -> Mapping[str, float]:
        """See `EnvHost`."""
        return await self._timed(self._host.close(episode))

    async def _timed(self, call: Awaitable[_T]) -> _T:
        if self._waiting == 0:
            self._since = time.perf_counter()
        self._waiting += 1
        try:
            return await call
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self.environment_s += time.perf_counter() - self._since

    def metrics(self) -> dict[str, Metric]:
        """`time/play_s`: this call's share of the seconds; `time/environment_s`: those in which at least one of its environments worked;
        `rollout/prefix_hit_rate`: the share of its prompt tokens that were in the prefix cache, left out if it asked for none."""
        return {
            "time/play_s": Metric(value=self.play_s, reduction=Reduction.MAX),
            "time/environment_s": Metric(value=self.environment_s, reduction=Reduction.MAX),
            "rollout/prefix_hit_rate": Metric(value=self._found / max(self._asked, 1), weight=self._asked),
        }
