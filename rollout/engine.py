"""The vLLM engines that sample actions: the one module of this package that knows vLLM's API.

Two ways to drive the same engine behind one protocol:

- `InprocessEngine` steps the engine core in this process. An episode's turn is a few tokens, so what counts is the cost of a
  request, not of a token; requests therefore go straight to the core, without the text layers that token-in, token-out
  does not need. Weights arrive between two steps, so every token knows its version.
- `AsyncEngine` is vLLM's AsyncLLM: the core in a process of its own, scheduling overlapped with the forward pass.

Both follow `rollout.policy.Engine` and return processed log-probs (after temperature), so that the learner's log-probs at the
same temperature are equal.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from envs.errors import InputError
from rollout.config import GeneratorConfig
from rollout.policy import Engine
from rollout.types import Completion, Sampling

# Steps without any output, after which a request that the scheduler cannot place is an error instead of a busy wait.
_STALLED_STEPS = 1000


def has_gpu() -> bool:
    """True if vLLM would run on a GPU here."""
    import torch

    return torch.cuda.is_available()


def start_engine(model: str, end_id: int, max_model_len: int, config: GeneratorConfig, *, seed: int, transfer: str) -> Engine:
    """Start the engine that `config.engine` asks for (`auto`: in-process on CPU, async on GPU).

    Must be called in a process that has not imported vLLM yet, because vLLM reads its environment at import.
    """
    inprocess = config.engine == "inprocess" or (config.engine == "auto" and not has_gpu())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # several engines share few cores: binding would stack them on one
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if inprocess else "1"
    from vllm.config import WeightTransferConfig

    arguments: dict[str, Any] = {
        "model": model,
        "dtype": config.dtype,
        "seed": seed % 2**32,
        # One more than the longest episode, because scoring a row samples one token behind it.
        "max_model_len": max_model_len + 1,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": max(config.max_batched_tokens, max_model_len + 1),
        "tensor_parallel_size": config.tensor_parallel,
        "enforce_eager": config.enforce_eager,
        "enable_prefix_caching": config.prefix_caching,
        # A chunked prefill rewinds the generator of a seeded request, which the CPU's random generator cannot do.
        "enable_chunked_prefill": has_gpu(),
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "weight_transfer_config": WeightTransferConfig(backend=transfer),
    }
    block_size = config.block_size or (None if has_gpu() else 32)
    if block_size:
        arguments["block_size"] = block_size
    if has_gpu():
        arguments["gpu_memory_utilization"] = config.gpu_memory_fraction
    else:
        arguments["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
    try:
        return InprocessEngine(arguments, end_id) if inprocess else AsyncEngine(arguments, end_id)
    except (ValueError, OSError) as error:
        raise InputError(f"vLLM cannot serve {model} with these settings: {error}") from error


def _sampling_params(sampling: Sampling, end_id: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    # Nothing but the temperature may shape the distribution (no top-p, penalty or minimum length): the learner has only that.
    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
        stop_token_ids=[end_id],
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _scoring_params() -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True, detokenize=False)


class _Pending:
    """One request in flight in the in-process engine."""

    def __init__(self, version: int) -> None:
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.token_ids: list[int] = []
        self.logp: list[float] = []
        self.first_version = version
        self.prompt_logp: tuple[float, ...] = ()


class InprocessEngine:
    """vLLM's engine core, stepped by one asyncio task of this process. See `Engine` for the methods."""

    def __init__(self, arguments: Mapping[str, Any], end_id: int) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._llm = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._context = int(arguments["max_model_len"])
        self._end_id = end_id
        self._ids = itertools.count()
        self._pending: dict[str, _Pending] = {}
        self._task: asyncio.Task[None] | None = None
        self._updating = False
        self._asked = self._found = 0
        self.version = 0

    async def generate(self, token_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """See `Engine`."""
        pending = await self._run(token_ids, _sampling_params(sampling, self._end_id))
        return Completion(
            token_ids=tuple(pending.token_ids),
            logp_old=tuple(pending.logp),
            first_version=pending.first_version,
            last_version=self.version,
            stopped=pending.token_ids[-1] == self._end_id,
        )

    async def score(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        """See `Engine`."""
        return (await self._run(token_ids, _scoring_params())).prompt_logp

    async def _run(self, token_ids: tuple[int, ...], params: Any) -> _Pending:
        from vllm.v1.engine import EngineCoreRequest

        # The core would wait for ever for room behind the request.
        assert len(token_ids) < self._context, f"{len(token_ids)} tokens leave no room to sample in a context of {self._context}"
        name = str(next(self._ids))
        pending = self._pending[name] = _Pending(self.version)
        request = EngineCoreRequest(name, list(token_ids), None, params, None, 0.0, None, None, None)
        self._llm.engine_core.add_request(request)
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
            pending.token_ids += output.new_token_ids
            if output.new_logprobs is not None:
                pending.logp += output.new_logprobs.logprobs[:, 0].tolist()
            if output.new_prompt_logprobs_tensors is not None:
                pending.prompt_logp = tuple(output.new_prompt_logprobs_tensors.logprobs[:, 0].tolist())
            if output.prefill_stats is not None:
                self._asked += output.prefill_stats.num_prompt_tokens
                self._found += output.prefill_stats.num_cached_tokens
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

    def prefix_hit_rate(self) -> float | None:
        """See `Engine`."""
        rate = self._found / self._asked if self._asked else None
        self._asked = self._found = 0
        return rate

    def drive_bare(self, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> float:
        """Seconds that vLLM's public loop (`add_request`, `step`) takes to sample `lengths` tokens behind `prompts`: the yardstick.

        All requests are known at the start, which is easier than the episodes' own order, where a turn waits for the last one.
        """
        begun = time.perf_counter()
        for name, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            params = _sampling_params(Sampling(max_tokens=length, seed=name), end_id=-1)
            self._llm.add_request(f"bare-{name}", {"prompt_token_ids": list(prompt)}, params)
        while self._llm.has_unfinished_requests():
            self._llm.step()
        return time.perf_counter() - begun

    def close(self) -> None:
        """See `Engine`."""
        self._llm.engine_core.shutdown()


class AsyncEngine:
    """vLLM's AsyncLLM. See `Engine` for the methods."""

    def __init__(self, arguments: Mapping[str, Any], end_id: int) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self._end_id = end_id
        self._ids = itertools.count()
        self._asked = self._found = 0
        self._paused = False
        self.version = 0

    async def _final(self, token_ids: tuple[int, ...], params: Any) -> Any:
        final = None
        async for output in self._llm.generate({"prompt_token_ids": list(token_ids)}, params, request_id=str(next(self._ids))):
            final = output
        assert final is not None, "vLLM ended a request without an output"
        self._asked += len(token_ids)
        self._found += final.num_cached_tokens or 0
        return final

    async def generate(self, token_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """See `Engine`."""
        before = self.version
        output = (await self._final(token_ids, _sampling_params(sampling, self._end_id))).outputs[0]
        versions = [int(span.version) for span in output.weight_versions or [] if str(span.version).isdigit()] or [before]
        sampled = tuple(output.token_ids)
        logp = tuple(position[token].logprob for position, token in zip(output.logprobs, sampled, strict=True))
        return Completion(
            token_ids=sampled, logp_old=logp, first_version=versions[0], last_version=versions[-1], stopped=sampled[-1] == self._end_id
        )

    async def score(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        """See `Engine`."""
        positions = (await self._final(token_ids, _scoring_params())).prompt_logprobs[1:]
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

    def prefix_hit_rate(self) -> float | None:
        """See `Engine`."""
        rate = self._found / self._asked if self._asked else None
        self._asked = self._found = 0
        return rate

    def close(self) -> None:
        """See `Engine`."""
        self._llm.shutdown()
