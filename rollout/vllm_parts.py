"""Everything that is made of vLLM's own names: its engines, their arguments, and requests. The engines' drivers import none.

vLLM is imported inside the functions, because it reads its environment at import (see `rollout.engine`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rollout.config import GeneratorConfig
from rollout.types import Sampling


def has_gpu() -> bool:
    """True if this process was given a GPU, which vLLM then runs on."""
    import torch

    return torch.cuda.is_available()


def engine_arguments(model: str, max_model_len: int, config: GeneratorConfig, *, seed: int, transfer: str) -> dict[str, Any]:
    """The arguments of both engines; `max_model_len` is the longest episode in tokens."""
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
    return arguments


def llm_engine(arguments: Mapping[str, Any]) -> Any:
    """vLLM's LLMEngine, whose core lives in this process if `VLLM_ENABLE_V1_MULTIPROCESSING` is 0."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(EngineArgs(**arguments))


def async_llm(arguments: Mapping[str, Any]) -> Any:
    """vLLM's AsyncLLM, whose core lives in a process of its own."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


def core_request(name: str, token_ids: Sequence[int], params: Any) -> Any:
    """A request as the engine core takes it, past vLLM's text layers."""
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=list(token_ids),
        sampling_params=params,
        arrival_time=0.0,  # orders nothing: all requests have one priority, and the scheduler takes them as they come
        mm_features=None,
        pooling_params=None,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def sampling_params(sampling: Sampling, end_id: int | None) -> Any:
    """vLLM's parameters of one turn; `end_id` None never stops before `max_tokens`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    # Nothing but the temperature may shape the distribution (no top-p, penalty or minimum length): the learner has only that.
    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
        stop_token_ids=None if end_id is None else [end_id],
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def scoring_params() -> Any:
    """vLLM's parameters of a request that is only about the log-probs of its prompt."""
    from vllm import SamplingParams

    return SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True, detokenize=False)
