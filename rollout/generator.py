"""A generator: one engine, its chat encoder, and the episodes that are played against environments. A plain class."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envs.contract import Task
from envs.errors import InputError
from envs.metrics import Metric
from rollout.chat import load_encoder
from rollout.config import GeneratorConfig, RolloutConfig
from rollout.engine import start_engine
from rollout.engine_inprocess import InprocessEngine
from rollout.meter import Meter, PlayClock
from rollout.play import EnvHost, GroupFailure, all_or_none, play_group
from rollout.types import Group


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """Play `size` siblings of `task` as group number `group`. `temperature` 0 is greedy; None takes the config's.

    `common_noise` is for evaluation, see `play_group`; `hint` stands at the end of the prompt, see `Episode`.
    """

    task: Task
    group: int
    size: int
    temperature: float | None = None
    common_noise: bool = False
    hint: str | None = None
    train_with_hint: bool = True


class Generator:
    """Serves the policy through vLLM and plays groups of episodes, many at the same time.

    A turn costs no remote call when `host` is local: the episodes run in this process, beside the engine.
    """

    def __init__(
        self,
        *,
        model: str,
        observation_role: str,
        rollout: RolloutConfig,
        generator: GeneratorConfig,
        host: EnvHost,
        seed: int,
        transfer: str,
    ) -> None:
        self._model = model
        self._observation_role = observation_role
        self._rollout = rollout
        self._generator = generator
        self._host = host
        self._seed = seed
        self._transfer = transfer
        self._clock = PlayClock()

    async def start(self) -> int:
        """Load the tokenizer and start the engine (seconds to a minute); returns the version of its weights."""
        self._encoder = load_encoder(self._model, observation_role=self._observation_role)
        self._engine = start_engine(
            self._model,
            self._encoder.end_id,
            self._rollout.max_context_tokens,
            self._generator,
            seed=self._seed,
            transfer=self._transfer,
        )
        return self._engine.version

    async def play(self, requests: Sequence[GroupRequest], seed: int) -> tuple[list[Group | GroupFailure], dict[str, Metric]]:
        """Play all groups concurrently; a group whose environment fails comes back as a `GroupFailure` in its place."""
        meter = Meter(self._engine, self._host)
        groups = (
            play_group(
                request.task,
                request.group,
                size=request.size,
                seed=seed,
                config=self._rollout,
                encoder=self._encoder,
                policy=meter,
                host=meter,
                temperature=request.temperature,
                common_noise=request.common_noise,
                hint=request.hint,
                train_with_hint=request.train_with_hint,
            )
            for request in requests
        )
        with self._clock.running(meter):
            results = await all_or_none(groups)
        return list(results), meter.metrics()

    async def score(self, rows: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Log-probs of every row's tokens but the first, for the attestation after a push."""
        return list(await asyncio.gather(*(self._engine.score(row) for row in rows)))

    async def weights_rpc(self, method: str, payload: Mapping[str, object]) -> None:
        """One step of vLLM's weight-transfer protocol, called by the sender."""
        await self._engine.weights_rpc(method, **payload)

    async def commit(self, version: int) -> None:
        """The weights of `version` have arrived."""
        await self._engine.commit(version)

    async def drive_bare(self, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> float:
        """Seconds of `InprocessEngine.drive_bare`, for the benchmark. Raises `InputError` for another engine."""
        if not isinstance(self._engine, InprocessEngine):
            raise InputError("the yardstick of the generator drives vLLM in this process; set generator.engine=inprocess")
        return self._engine.drive_bare(prompts, lengths)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()
