"""vLLM's AsyncLLM, whose core runs in a process of its own. See `rollout.engine`."""

import itertools
from collections.abc import Mapping
from typing import Any

from rollout.types import Completion, Sampling
from rollout.vllm_parts import async_llm, sampling_params, scoring_params


class AsyncEngine:
    """vLLM's AsyncLLM. See `Engine` for the methods."""

    def __init__(self, arguments: Mapping[str, Any], end_id: int) -> None:
        self._llm = async_llm(arguments)
        self._end_id = end_id
        self._ids = itertools.count()
        self._paused = False
        self.version = 0

    async def _final(self, token_ids: tuple[int, ...], params: Any) -> Any:
        final = None
        async for output in self._llm.generate({"prompt_token_ids": list(token_ids)}, params, request_id=str(next(self._ids))):
            final = output
        assert final is not None, "vLLM ended a request without an output"
        return final

    async def generate(self, token_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """See `Engine`."""
        final = await self._final(token_ids, sampling_params(sampling, self._end_id))
        output = final.outputs[0]
        # Before the first push vLLM has a name of its own for the weights; they are version 0.
        spans = [str(span.version) for span in output.weight_versions]
        versions = [int(version) if version.isdigit() else 0 for version in spans]
        sampled = tuple(output.token_ids)
        logp = tuple(position[token].logprob for position, token in zip(output.logprobs, sampled, strict=True))
        return Completion(
            token_ids=sampled,
            logp_old=logp,
            first_version=versions[0],
            last_version=versions[-1],
            stopped=sampled[-1] == self._end_id,
            cached_tokens=final.num_cached_tokens or 0,
        )

    async def score(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        """See `Engine`."""
        positions = (await self._final(token_ids, scoring_params())).prompt_logprobs[1:]
        return tuple(position[token].logprob for position, token in zip(positions, token_ids[1:], strict=True))

    async def weights_rpc(self, method: str, **payload: Any) -> None:
        """See `Engine`."""
        if not self._paused and method == "start_weight_update":
            await self._llm.pause_generation(mode="keep", clear_cache=False)
            self._paused = True
        await self._llm.collective_rpc(method, kwargs=payload)

    async def commit(self, version: int) -> None:
        """See `Engine`."""
        await self._llm.reset_prefix_cache(reset_running_requests=True)
        await self._llm.update_weight_version(str(version))
        self.version = version
        if self._paused:
            await self._llm.resume_generation()
            self._paused = False

    def close(self) -> None:
        """See `Engine`."""
        self._llm.shutdown()
