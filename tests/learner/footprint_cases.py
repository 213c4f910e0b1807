"""A learner's tensors, counted; a module of its own, because a spawned process imports it."""

import gc
import warnings
from pathlib import Path

import torch

from learner.config import LearnerConfig
from learner.learner import Learner
from tests.learner.engine_cases import REINFORCE, place, split

ALONE = [("float32", 0), ("float32", 1), ("float32", 3)]
SHARED = [("bfloat16", 1), ("bfloat16", 2), ("bfloat16", 3)]
"""Dtypes and ZeRO stages that one rank has for itself, and that two share; each takes seconds."""


def config(dtype: str, stage: int) -> LearnerConfig:
    return LearnerConfig.model_validate({"dtype": dtype, "zero_stage": stage, "warmup_steps": 0})


def live() -> list[torch.Tensor]:
    """All tensors in this process, gradients included."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):  # looking at every object wakes deprecated attributes of libraries
        tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
        return tensors + [one.grad for one in tensors if one.is_leaf and one.grad is not None]


def bytes_beside(before: list[torch.Tensor]) -> int:
    """Storages of tensors that are no storages of `before`, each once. Whoever holds `before` keeps its addresses from being used again."""
    old = {one.untyped_storage().data_ptr() for one in before}
    now = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in live()}
    return sum(size for address, size in now.items() if address not in old)


def count(model: str, dtype: str, stage: int, rank: int = 0, world_size: int = 1, out: Path | None = None) -> dict[str, int]:
    """Bytes of one rank: its share of weights, master weights and moments, and all of it while it accumulates its second step."""
    before = live()
    where = {} if out is None else place(rank, world_size, out, f"{dtype} {stage}")
    learner = Learner(model, config(dtype, stage), REINFORCE, total_steps=2, timeout_s=60, **where)
    parts = split([4 // world_size, 4 // world_size], rank, world_size)
    learner.train_step(parts)
    learner._accumulate(parts[0], last=False)
    optimizer = learner._engine._optimizer
    policy = list(learner._policy.parameters())
    states = [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
    counted = {
        "weights": sum(getattr(one, "ds_tensor", one).nbytes for one in policy),
        "moments": sum(value.nbytes for value in states),
        "master weights": sum(one.nbytes for one in optimizer.state),
        "parameters": sum(getattr(one, "ds_numel", one.numel()) for one in policy),
        "all": bytes_beside(before),
    }
    learner._accumulate(parts[1], last=True)
    learner.close()
    return counted


def count_rank(rank: int, world_size: int, model: str, out: Path) -> None:
    """`count` of every case of `SHARED`, kept in a file."""
    counted = {case: count(model, *case, rank=rank, world_size=world_size, out=out) for case in SHARED}
    torch.save(counted, out / f"counted{rank}.pt")
