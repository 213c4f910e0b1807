"""The lines that `pickaxe train --dry-run` prints."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster.checks.before_start import check_before_start, check_room
from cluster.checks.dry_run import (
    GIB,
    Estimate,
    Machine,
    estimate,
    find_shape,
    micro_batch_tokens,
    rows_per_rank,
    this_machine,
    what_to_change,
)
from cluster.config import RunConfig
from cluster.prepare import eval_tasks
from cluster.resources import check_resources, cpus, gpus, transport
from envs.errors import InputError
from learner.footprint import Part, amount
from learner.plan import resolve
from learner.shape import ModelShape

_WIDTH = 120


def dry_run_report(config: RunConfig, title: str, gpu_memory_gib: float | None = None) -> list[str]:
    """Everything, line by line. Raises `InputError` for what a start would refuse on any machine."""
    machine = this_machine(config, gpu_memory_gib)
    shape, source = find_shape(config)
    lines = [f"Dry run of {title}: nothing is started and nothing is written.", "", "Placement", *_indent(placement(config, machine))]
    lines += ["", "Model", *_indent(_model(shape, source))]
    if shape is not None:
        lines += ["", *memory(config, shape, machine)]
    lines += ["", "Batch", *_indent(batch(config))]
    if advice := _advice(config):
        lines += ["", "Advice", *_indent(advice)]
    return lines


def placement(config: RunConfig, machine: Machine) -> Iterator[str]:
    """Which process would be where, and what this machine has."""
    sizes, parallel, wanted = config.cluster, config.generator.tensor_parallel, gpus(config)
    there = f"this machine has {machine.gpus}"
    if machine.on_gpu:
        yield f"needs {wanted} GPUs; {there}"
    else:
        yield f"runs on CPUs here ({there} GPUs); where there are GPUs it needs {wanted}"
    engine = config.generator.engine.replace("auto", "async" if machine.on_gpu else "inprocess")
    for number in range(sizes.generators):
        where = _gpus(number * parallel, parallel) if machine.on_gpu else f"{sizes.generator_threads} CPU threads"
        yield f"generator {number}     {where}, vLLM {engine}"
    for rank in range(sizes.learners):
        where = _gpus(sizes.generators * parallel + rank, 1) if machine.on_gpu else f"{sizes.learner_threads} CPU threads"
        yield f"learner rank {rank}  {where}, ZeRO stage {config.learner.zero_stage}, {config.learner.dtype}"
    if machine.on_gpu:
        yield "GPUs are numbered as Ray gives them out on one machine, generators first"
    hosts = f"{sizes.env_workers} workers with {sizes.env_processes} processes each" if sizes.env_workers else "inside the generators"
    yield f"environments: {hosts}; weights travel over {transport(config, wanted if machine.on_gpu else 0)}"
    yield f"CPU threads: {cpus(sizes)}; this machine has {machine.cpus}"
    if sizes.address:
        yield f"the cluster at {sizes.address} was not asked what it has"
        return
    try:
        # A Ray cluster of the run's own counts as many CPUs as the run wants.
        check_resources(config, max(machine.cpus, cpus(sizes)), machine.gpus, learners=True)
    except InputError as error:
        yield f"on this machine a start would be refused: {error}"


def _gpus(first: int, count: int) -> str:
    return f"GPU {first}" if count == 1 else f"GPUs {first} to {first + count - 1}"


def _model(shape: ModelShape | None, source: str) -> Iterator[str]:
    yield source
    if shape is None:
        yield "memory is not estimated; state model.shape.billions, or copy the model to this machine"
        return
    yield f"{amount(shape.parameters)} parameters ({shape.parameters:,})"
    if shape.missing:
        yield f"KV cache, activations and logits are not estimated: unknown are {', '.join(shape.missing)}"


def memory(config: RunConfig, shape: ModelShape, machine: Machine) -> Iterator[str]:
    """The estimate as a table, and whether it fits."""
    found = estimate(config, shape, machine)
    yield f"Memory of one {'GPU' if machine.on_gpu else 'process'} (an estimate: every line is the formula beside it)"
    yield from _table("generator", found.generator, found.generator_bytes)
    yield from _indent(_cache(config, found, machine))
    yield from _table("learner rank", found.rank, found.rank_bytes)
    if not machine.on_gpu:
        sizes = config.cluster
        total = (
            sizes.generators * (found.generator_bytes + (found.cache.bytes or 0 if found.cache else 0)) + sizes.learners * found.rank_bytes
        )
        yield f"  all processes together {_size(total)}; this machine has {_size(machine.memory_bytes)}"
    elif machine.gpu_bytes is None:
        yield "  whether that fits is not known: give --gpu-memory, the GiB of one GPU"
    elif changes := what_to_change(config, shape, machine):
        yield f"  does NOT fit into {_size(machine.gpu_bytes)} a GPU"
        yield from _indent(changes)
    else:
        part = "what is known of it fits" if found.unknown else "fits"
        yield f"  {part} into {_size(machine.gpu_bytes)} a GPU; a learner rank leaves {_size(machine.gpu_bytes - found.rank_bytes)}"


def _table(title: str, parts: Sequence[Part], total: int) -> Iterator[str]:
    for part in parts:
        yield f"  {title:<12}  {part.name:<15} {_size(part.bytes):>9}  {part.why}"
        title = ""
    yield f"  {'':<12}  {'together':<15} {_size(total):>9}"


def _cache(config: RunConfig, found: Estimate, machine: Machine) -> Iterator[str]:
    if found.cache is None:
        return
    token, longest, share = found.cache.token_bytes, config.rollout.max_context_tokens, config.generator.gpu_memory_fraction
    if found.cache.bytes is None:
        one = found.generator_bytes + token * longest
        yield f"KV cache: {token:,} bytes a token, in what is left of generator.gpu_memory_fraction={share:g}"
        yield f"with room for one whole episode a GPU needs {_size(int(one / share))}"
        return
    limit = f", what is left of {share:g} of a GPU" if machine.on_gpu else ""
    tokens, step = found.cache.tokens(), math.ceil(config.rollout.groups_per_step / config.cluster.generators) * config.rollout.group_size
    yield (
        f"KV cache: {_size(max(found.cache.bytes, 0))}{limit}: {token:,} bytes a token, {tokens:,} tokens, {tokens // longest:,} whole "
        f"episodes of {longest:,} at a time; a step gives a generator {step:,}"
    )


def batch(config: RunConfig) -> Iterator[str]:
    """How many episodes, tokens, micro-batches and optimiser steps there are."""
    rollout, learner, plan = config.rollout, config.learner, resolve(config.algorithm)
    episodes, longest = rollout.groups_per_step * rollout.group_size, rollout.max_context_tokens
    yield f"a step: {rollout.groups_per_step} tasks x {rollout.group_size} siblings = {episodes:,} episodes of at most {longest:,} tokens"
    turns = config.env.spec.max_turns(config.env_params)
    sampled = min(turns * rollout.max_turn_tokens, longest)
    yield f"an episode: at most {turns:,} turns of {rollout.max_turn_tokens:,} sampled tokens, {sampled:,} sampled in all"
    yield f"tokens of a step: {episodes * longest:,} at most, {episodes * sampled:,} of them sampled"
    if plan.in_rounds:
        rounds = math.ceil(config.steps / config.grow.steps)
        yield f"{config.steps:,} steps in {rounds:,} rounds; optimiser steps of {config.grow.batch_episodes:,} of the episodes that pass"
    else:
        tokens, rows = micro_batch_tokens(config), rows_per_rank(config)
        cut = math.ceil(rows / max(tokens // longest, 1))
        yield f"an optimiser step: {rows:,} episodes a rank, in {cut:,} micro-batches of {tokens:,} padded tokens if all are full"
        updates = config.steps * learner.minibatches * learner.epochs
        yield f"{config.steps:,} steps x {learner.minibatches} minibatches x {learner.epochs} epochs = {updates:,} optimiser steps"
    tasks, plays = len(eval_tasks(config)), config.eval.samples + 1
    yield f"an evaluation every {config.eval.every} steps: {tasks:,} tasks x {plays}, once greedily, = {tasks * plays:,} episodes"


def _advice(config: RunConfig) -> list[str]:
    """What a start would say, if the policy has a folder here; a hub name's tokenizer might have to be downloaded."""
    path = config.model.path
    if path is None or Path(path).is_dir():
        return check_before_start(config)
    return [*check_room(config), f"whether prompts and turns fit their limits was not tried: {path} is no folder here"]


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / 2**20:.1f} MiB"


def _indent(lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
