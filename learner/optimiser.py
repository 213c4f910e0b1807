"""The optimiser, its learning rate and DeepSpeed's settings, from the learner's config; nothing here imports DeepSpeed."""

import math
from typing import Any

import torch

from learner.config import LearnerConfig
from learner.logprob import PolicyModel

_BUCKET_ELEMENTS = 50_000_000
# Parameters below this size (norms, biases) stay whole under ZeRO-3: gathering them would cost more than it saves.
_PERSISTENT_ELEMENTS = 10_000


def learning_rate(config: LearnerConfig, step: int, total_steps: int) -> float:
    """The learning rate of optimiser step `step` (0-based) out of `total_steps`.

        lr * (step + 1) / warmup_steps                  while step < warmup_steps
        lr                                              constant
        lr * (1 - x)                                    linear
        lr * (1 + cos(pi x)) / 2                        cosine        x = (step - warmup) / (total - warmup), at most 1

    The last step's rate is above 0: a step that changes nothing would be wasted.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    match config.schedule:
        case "linear":
            return config.lr * (1 - progress)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * progress)) / 2
        case "constant":
            return config.lr


def new_optimiser(policy: PolicyModel, config: LearnerConfig) -> torch.optim.Optimizer:
    """An optimiser of the parameters that are not frozen."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    match config.optimizer:
        case "adamw":
            return torch.optim.AdamW(trained, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
        case "sgd":
            return torch.optim.SGD(trained, lr=config.lr, weight_decay=config.weight_decay)


def deepspeed_config(policy: PolicyModel, config: LearnerConfig) -> dict[str, Any]:
    """What `deepspeed.initialize` is told."""
    # A bucket larger than the model would only allocate memory that is never filled.
    # It must be even: DeepSpeed lays tensors out on 4 bytes, two elements of 16 bits.
    bucket = min(_BUCKET_ELEMENTS, sum(parameter.numel() for parameter in policy.parameters()) + 1 & ~1)
    zero: dict[str, Any] = {"stage": config.zero_stage, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if config.zero_stage == 3:
        zero.update(stage3_prefetch_bucket_size=bucket, stage3_param_persistence_threshold=_PERSISTENT_ELEMENTS)
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.max_grad_norm if config.zero_stage else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    if config.dtype == "bfloat16":
        settings.update(bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"})
    return settings
