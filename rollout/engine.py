"""The vLLM engines that sample actions: two ways to drive the same engine behind one protocol, `rollout.policy.Engine`.

- `InprocessEngine` steps the engine core in this process. An episode's turn is a few tokens, so what counts is the cost of a
  request, not of a token; requests therefore go straight to the core, without the text layers that token-in, token-out
  does not need. Weights arrive between two steps, so every token knows its version.
- `AsyncEngine` is vLLM's AsyncLLM: the core in a process of its own, scheduling overlapped with the forward pass.

Both return processed log-probs (after temperature), so that the learner's log-probs at the same temperature are equal.
"""

import os

from envs.errors import InputError
from rollout.config import GeneratorConfig
from rollout.engine_async import AsyncEngine
from rollout.engine_inprocess import InprocessEngine
from rollout.policy import Engine
from rollout.vllm_parts import engine_arguments, has_gpu


def start_engine(model: str, end_id: int, max_model_len: int, config: GeneratorConfig, *, seed: int, transfer: str) -> Engine:
    """Start the engine that `config.engine` asks for (`auto`: in-process on CPU, async on GPU).

    Must be called in a process that has not imported vLLM yet, because vLLM reads its environment at import.
    """
    inprocess = config.engine == "inprocess" or (config.engine == "auto" and not has_gpu())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # several engines share few cores: binding would stack them on one
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if inprocess else "1"
    arguments = engine_arguments(model, max_model_len, config, seed=seed, transfer=transfer)
    try:
        return InprocessEngine(arguments, end_id) if inprocess else AsyncEngine(arguments, end_id)
    except (ValueError, OSError) as error:
        raise InputError(f"vLLM cannot serve {model} with these settings: {error}") from error
