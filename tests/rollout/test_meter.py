"""What a call of `play` takes is its own, although calls overlap."""

import asyncio
from collections.abc import Mapping

import pytest

from envs.contract import Message, Step, Task
from envs.metrics import reduce_metrics
from rollout.meter import Meter, PlayClock
from rollout.types import Completion, Sampling

TASK = Task(id="t", env="e", split="s", level="", seed=0)
TICK_S = 0.05


class Slow:
    """A policy that finds a third of every prompt in its cache, and environments that take a tick to start."""

    async def generate(self, token_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        found = len(token_ids) // 3
        return Completion(token_ids=(1,), logp_old=(0.0,), first_version=0, last_version=0, stopped=True, cached_tokens=found)

    async def start(self, episode: str, task: Task) -> tuple[Message, ...]:
        await asyncio.sleep(TICK_S)
        return ()

    async def step(self, episode: str, text: str) -> Step:
        return Step(observation="")

    async def close(self, episode: str) -> Mapping[str, float]:
        return {}


def test_calls_that_play_at_the_same_time_share_the_seconds() -> None:
    async def play() -> tuple[float, float]:
        clock, policy = PlayClock(), Slow()
        long, short = Meter(policy, policy), Meter(policy, policy)

        async def beside() -> None:
            await asyncio.sleep(TICK_S)
            with clock.running(short):
                await asyncio.sleep(2 * TICK_S)

        with clock.running(long):
            await asyncio.gather(beside(), asyncio.sleep(4 * TICK_S))
        await asyncio.sleep(TICK_S)
        return long.play_s / TICK_S, short.play_s / TICK_S

    assert asyncio.run(play()) == pytest.approx((3.0, 1.0), rel=0.3)


def test_an_environment_counts_for_the_call_that_waits_for_it_and_siblings_once() -> None:
    async def play() -> list[float]:
        slow = Slow()
        meters = [Meter(slow, slow), Meter(slow, slow)]
        await asyncio.gather(*(meters[0].start(name, TASK) for name in "abc"), meters[1].step("d", ""))
        return [reduce_metrics([meter.metrics()])["time/environment_s"] for meter in meters]

    first, second = asyncio.run(play())
    assert TICK_S * 0.9 < first < TICK_S * 2
    assert second < TICK_S / 2


def test_the_hit_rate_of_several_generators_counts_tokens() -> None:
    async def play() -> dict[str, float]:
        slow = Slow()
        large, small, idle = (Meter(slow, slow) for _ in range(3))
        await large.generate((0,) * 90, Sampling())
        await small.generate((0,) * 2, Sampling())
        return reduce_metrics(meter.metrics() for meter in (large, small, idle))

    assert asyncio.run(play())["rollout/prefix_hit_rate"] == pytest.approx(30 / 92)
