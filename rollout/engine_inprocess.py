"""vLLM's engine core, stepped in this process. See `rollout.engine`."""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rollout.types import Completion, Sampling
from rollout.vllm_parts import core_request, llm_engine, sampling_params, scoring_params

# Steps without any output, after which a request that the scheduler cannot place is an error instead of a busy wait.
_STALLED_STEPS = 1000


class _Pending:
    """One request in flight in the in-process engine."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.token_ids: list[int] = []
        self.logp: list[float] = []
        self.first_version = self.last_version = -1  # no token yet
        self.cached_tokens: int | None = None
        self.prompt_logp: tuple[float, ...] = ()


class InprocessEngine:
    """vLLM's engine core, stepped by one asyncio task of this process. See `Engine` for the methods."""

    def __init__(self, arguments: Mapping[str, Any], end_id: int) -> None:
        self._llm = llm_engine(arguments)
        self._context = int(arguments["max_model_len"])
        self._end_id = end_id
        self._ids = itertools.count()
        self._pending: dict[str, _Pending] = {}
        self._task: asyncio.Task[None] | None = None
        self._updating = False
        self.version = 0

    async def generate(self, token_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """See `Engine`."""
        pending = await self._run(token_ids, sampling_params(sampling, self._end_id))
        return Completion(
            token_ids=tuple(pending.token_ids),
            logp_old=tuple(pending.logp),
            first_version=pending.first_version,
            last_version=pending.last_version,
            stopped=pending.token_ids[-1] == self._end_id,
            cached_tokens=pending.cached_tokens or 0,
        )

    async def score(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        """See `Engine`."""
        return (await self._run(token_ids, scoring_params())).prompt_logp

    async def _run(self, token_ids: tuple[int, ...], params: Any) -> _Pending:
        # The core would wait for ever for room behind the request.
        assert len(token_ids) < self._context, f"{len(token_ids)} tokens leave no room to sample in a context of {self._context}"
        name = str(next(self._ids))
        pending = self._pending[name] = _Pending()
        self._llm.engine_core.add_request(core_request(name, token_ids, params))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._step_until_idle())
        try:
            await pending.done
        except asyncio.CancelledError:
            self._pending.pop(name, None)
            self._llm.engine_core.abort_requests([name])
            raise
        return pending

    async def _step_until_idle(self) -> None:
        # Consumes requests; produces completions; between two steps the episodes that got one run and ask for their next turn,
        # and a weight update may come in. Ends when nothing is in flight; the next request starts it again.
        stalled = 0
        while self._pending:
            if self._updating:
                await asyncio.sleep(0.001)
                continue
            try:
                outputs = self._llm.engine_core.get_output().outputs
                stalled = 0 if outputs else stalled + 1
                if stalled > _STALLED_STEPS:
                    raise RuntimeError("it cannot schedule a request: raise generator.kv_cache_gib or generator.max_batched_tokens")
                self._collect(outputs)
            except Exception as error:  # a dead engine must fail every episode that waits for it, not hang them
                for pending in self._pending.values():
                    if not pending.done.done():
                        pending.done.set_exception(RuntimeError(f"the vLLM engine failed: {type(error).__name__}: {error}"))
                self._pending.clear()
                raise
            await asyncio.sleep(0)

    def _collect(self, outputs: list[Any]) -> None:
        for output in outputs:
            pending = self._pending.get(output.request_id)
            if pending is None:
                continue
            if output.new_token_ids:
                # A push may come in between asking for a turn and its first token, or its last token and its being read.
                pending.first_version = pending.first_version if pending.token_ids else self.version
                pending.last_version = self.version
                pending.token_ids += output.new_token_ids
            if output.new_logprobs is not None:
                pending.logp += output.new_logprobs.logprobs[:, 0].tolist()
            if output.new_prompt_logprobs_tensors is not None:
                pending.prompt_logp = tuple(output.new_prompt_logprobs_tensors.logprobs[:, 0].tolist())
            if output.prefill_stats is not None and pending.cached_tokens is None:  # a push has the request prefilled again
                pending.cached_tokens = output.prefill_stats.num_cached_tokens
            if output.finish_reason is not None:
                del self._pending[output.request_id]
                if not pending.done.done():
                    pending.done.set_result(None)

    async def weights_rpc(self, method: str, **payload: Any) -> None:
        """See `Engine`."""
        if method == "start_weight_update":
            self._updating = True  # from here to `commit` no step runs, so no forward pass sees half-loaded weights
        self._llm.collective_rpc(method, kwargs=payload)

    async def commit(self, version: int) -> None:
        """See `Engine`."""
        self._llm.reset_prefix_cache(reset_running_requests=True)
        self.version = version
        self._updating = False

    def drive_bare(self, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> float:
        """Seconds that vLLM's public loop (`add_request`, `step`) takes to sample `lengths` tokens behind `prompts`: the yardstick.

        All requests are known at the start, which is easier than the episodes' own order, where a turn waits for the last one.
        """
        begun = time.perf_counter()
        for name, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            params = sampling_params(Sampling(max_tokens=length, seed=name), end_id=None)
            self._llm.add_request(f"bare-{name}", {"prompt_token_ids": list(prompt)}, params)
        while self._llm.has_unfinished_requests():
            self._llm.step()
        return time.perf_counter() - begun

    def close(self) -> None:
        """See `Engine`."""
        self._llm.engine_core.shutdown()
