"""What a run would be, without starting any of it: where its processes would be, how much memory they take, and what a step trains.

The learner's lines are `learner.footprint`. A generator has its weights, one forward pass and what vLLM, CUDA and NCCL take, and
all that `generator.gpu_memory_fraction` leaves is its KV cache. Simplifications: one kind of GPU; weights divide evenly over
`generator.tensor_parallel`; layers that keep a state of fixed size instead of keys and values count as nothing in the cache.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from cluster.config import RunConfig
from cluster.prepare import policy_tokenizer
from envs.errors import InputError
from learner.footprint import BYTES, Part, activation_parts, amount, backbones_of, parameter_counts, state_parts
from learner.model import check_folder
from learner.plan import resolve
from learner.shape import ModelShape, Widths, shape_of, stated_shape
from learner.tiny import llama_config

GIB = 2**30
_ALLOWANCE = {True: 2 * GIB, False: GIB}
_ALLOWANCE_WHY = {True: "CUDA, NCCL, fragmentation: an allowance, not a formula", False: "Python and its libraries: an allowance"}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is to run on. `gpu_bytes` is the memory of one GPU, None if nobody knows; `on_gpu` if the run would be on GPUs."""

    gpus: int
    gpu_bytes: int | None
    cpus: int
    memory_bytes: int
    on_gpu: bool


@dataclass(frozen=True, kw_only=True)
class KvCache:
    """The cache of one generator: what a token takes on each of its GPUs, and how much room there is (None if nobody knows)."""

    token_bytes: int
    bytes: int | None

    def tokens(self) -> int:
        """How many tokens it holds; 0 if nobody knows."""
        return max(self.bytes or 0, 0) // self.token_bytes


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Memory of one GPU (or, on CPUs, of one process) of a generator and of a learner rank. `unknown` names what is missing."""

    generator: tuple[Part, ...]
    cache: KvCache | None
    rank: tuple[Part, ...]
    unknown: tuple[str, ...]

    @property
    def generator_bytes(self) -> int:
        """All lines of a generator together, without its cache."""
        return sum(part.bytes for part in self.generator)

    @property
    def rank_bytes(self) -> int:
        """All lines of a learner rank together."""
        return sum(part.bytes for part in self.rank)


def this_machine(config: RunConfig, gpu_memory_gib: float | None) -> Machine:
    """This machine, or one like it whose GPUs have so much memory; a config that needs GPUs is about GPUs wherever it is read."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    smallest = min((torch.cuda.get_device_properties(number).total_memory for number in range(gpus)), default=None)
    return Machine(
        gpus=gpus,
        gpu_bytes=smallest if gpu_memory_gib is None else int(gpu_memory_gib * GIB),
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        on_gpu=gpus > 0 or gpu_memory_gib is not None or config.cluster.transfer == "nccl",
    )


def find_shape(config: RunConfig) -> tuple[ModelShape | None, str]:
    """The shape of the policy and where it was found; nothing is downloaded. Raises `InputError` for a folder that is no model."""
    path = config.model.path
    if path is None:
        settings = llama_config(policy_tokenizer(config), config.model.tiny)
        return shape_of(settings), "the tiny policy of model.tiny"
    settings = local_settings(path)
    if settings is not None:
        return shape_of(settings), f"the config of {path}"
    shape = stated_shape(config.model.shape)
    if shape is None:
        return None, f"{path} is not on this machine, and model.shape.billions does not say how large it is"
    return shape, f"{path} is not on this machine: model.shape of the recipe, billions={config.model.shape.billions:g}"


def local_settings(path: str) -> Any:
    """The config of a model folder or of a hub name that was downloaded before; None if it is not on this machine."""
    check_folder(path)
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        if Path(path).is_dir():
            raise InputError(f"model {path} cannot be read: {error}. Expected a Hugging Face folder; copy the model again") from error
        return None


def estimate(config: RunConfig, shape: ModelShape, machine: Machine) -> Estimate:
    """Memory of a generator and of a learner rank."""
    widths, generator, size = shape.widths, config.generator, BYTES[config.generator.dtype]
    allowance = Part(name="allowance", bytes=_ALLOWANCE[machine.on_gpu], why=_ALLOWANCE_WHY[machine.on_gpu])
    parallel = generator.tensor_parallel
    share = f" / {parallel} GPUs" if parallel > 1 else ""
    weights = Part(
        name="weights",
        bytes=shape.parameters * size // parallel,
        why=f"{amount(shape.parameters)} x {size} bytes ({generator.dtype}){share}",
    )
    serving, cache = [weights], None
    if widths is not None:
        serving.append(_forward_pass(config, widths))
        cache = _cache(config, machine, widths, sum(part.bytes for part in serving) + allowance.bytes)
    return Estimate(
        generator=(*serving, allowance),
        cache=cache,
        rank=(*_rank_parts(config, shape), allowance),
        unknown=shape.missing,
    )


def _forward_pass(config: RunConfig, widths: Widths) -> Part:
    generator = config.generator
    tokens = max(generator.max_batched_tokens, config.rollout.max_context_tokens + 1)
    width = 2 * widths.hidden + max(widths.query + 2 * widths.key, 2 * widths.mlp) // generator.tensor_parallel
    logits = 3 * 4 * generator.max_num_seqs * widths.vocab
    return Part(
        name="forward pass",
        bytes=tokens * width * BYTES[generator.dtype] + logits,
        why=f"{tokens:,} tokens of one layer; {generator.max_num_seqs:,} rows of logits, three times in float32",
    )


def _cache(config: RunConfig, machine: Machine, widths: Widths, taken: int) -> KvCache:
    generator = config.generator
    token = max(2 * widths.attention_layers * widths.key * BYTES[generator.dtype] // generator.tensor_parallel, 1)
    if not machine.on_gpu:
        return KvCache(token_bytes=token, bytes=int(generator.kv_cache_gib * GIB))
    if machine.gpu_bytes is None:
        return KvCache(token_bytes=token, bytes=None)
    return KvCache(token_bytes=token, bytes=int(machine.gpu_bytes * generator.gpu_memory_fraction) - taken)


def _rank_parts(config: RunConfig, shape: ModelShape) -> Iterator[Part]:
    plan, learner = resolve(config.algorithm), config.learner
    value = config.algorithm.value if plan.needs_value else None
    parameters, trained = parameter_counts(shape, lora=learner.lora, value=value)
    yield from state_parts(parameters, trained, learner, config.cluster.learners)
    if plan.kl_coef > 0 and learner.lora is None:
        size = BYTES[learner.dtype]
        why = f"a whole copy on every rank, because algorithm.kl_coef is {plan.kl_coef:g}"
        yield Part(name="KL reference", bytes=size * shape.parameters, why=why)
    if shape.widths is not None:
        yield from activation_parts(shape.widths, learner, tokens=micro_batch_tokens(config), backbones=backbones_of(value))


def micro_batch_tokens(config: RunConfig) -> int:
    """The most padded tokens of one micro-batch: a longer row has one of its own, and a rank may have fewer rows than fit."""
    longest = config.rollout.max_context_tokens
    return min(max(config.learner.micro_batch_tokens, longest), rows_per_rank(config) * longest)


def rows_per_rank(config: RunConfig) -> int:
    """The most episodes of one optimiser step that a rank learns from."""
    episodes = config.rollout.groups_per_step * config.rollout.group_size // config.learner.minibatches
    return math.ceil(episodes / config.cluster.learners)


def what_to_change(config: RunConfig, shape: ModelShape, machine: Machine) -> list[str]:
    """One line for everything that does not fit into `machine.gpu_bytes`, with changes and what each would come to; [] if all fits."""
    limit, found = machine.gpu_bytes, estimate(config, shape, machine)
    if limit is None:
        return []
    lines = []
    episode = 0 if found.cache is None else found.cache.token_bytes * config.rollout.max_context_tokens
    if found.generator_bytes + episode > limit * config.generator.gpu_memory_fraction:
        lines.append(
            f"a generator has no room for one episode of {config.rollout.max_context_tokens:,} tokens: raise generator.tensor_parallel "
            f"(now {config.generator.tensor_parallel}) or generator.gpu_memory_fraction (now {config.generator.gpu_memory_fraction:g}), "
            "or lower rollout.max_context_tokens or generator.max_batched_tokens"
        )
    if found.rank_bytes > limit:
        changes = [(words, estimate(changed, shape, machine).rank_bytes) for words, changed in _smaller(config)]
        smaller = [f"{words} ({total / GIB:.1f})" for words, total in changes if total < found.rank_bytes]
        change = f"what changes come to in GiB: {', '.join(smaller)}" if smaller else "take a smaller model"
        lines.append(f"a learner rank takes {found.rank_bytes / GIB:.1f} GiB of {limit / GIB:.1f}; {change}")
    return lines


def _smaller(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """Changes that can make a learner rank smaller, each alone, and at the end all together."""
    learner = config.learner
    row = min(learner.micro_batch_tokens, config.rollout.max_context_tokens)
    changes: dict[str, dict[str, Any]] = {
        "learner.gradient_checkpointing=true": {"gradient_checkpointing": True},
        "learner.zero_stage=2": {"zero_stage": max(2, learner.zero_stage)},
        "learner.zero_stage=3": {"zero_stage": 3},
        f"learner.micro_batch_tokens={row}": {"micro_batch_tokens": row},
        "learner.head_chunk_tokens=512": {"head_chunk_tokens": min(512, learner.head_chunk_tokens)},
    }
    together: dict[str, Any] = {}
    for words, change in changes.items():
        together |= change
        yield words, config.model_copy(update={"learner": learner.model_copy(update=change)})
    doubled = config.cluster.model_copy(update={"learners": 2 * config.cluster.learners})
    yield f"cluster.learners={doubled.learners}", config.model_copy(update={"cluster": doubled})
    yield "all of these", config.model_copy(update={"learner": learner.model_copy(update=together), "cluster": doubled})
