"""The one module that knows DeepSpeed: gradients of weighted sums, accumulated exactly, over any ZeRO stage.

Simplifications: data parallelism only; optimisers are PyTorch's own; nothing is offloaded. DeepSpeed averages over ranks,
the loss is a sum whose normaliser is in its weights already, so `backward` multiplies by the number of ranks and
DeepSpeed's own division by the number of accumulated micro-batches is switched off: any split gives the same gradient.
"""

import io
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from envs.errors import InputError
from learner.config import LearnerConfig
from learner.logprob import PolicyModel
from learner.lora import adapters, factor_names, switched_off
from learner.optimiser import deepspeed_config, new_optimiser

if not torch.cuda.is_available():
    # DeepSpeed picks its accelerator while it is imported, and without this it picks by the packages that are installed.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.ops
from deepspeed.utils import logger as deepspeed_logger


def join(rank: int, world_size: int, store: Store | None, timeout_s: float) -> torch.device:
    """Join the process group of all ranks (gloo on CPU, nccl on GPU), who meet in `store` (one rank needs none), and
    return this rank's device.

    Every collective has the deadline `timeout_s`, so that a dead peer is an error and not a hang. Does nothing but check
    if this process is in a group already. Raises `InputError` if that group is another one.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    deepspeed_logger.setLevel(logging.ERROR)
    # DeepSpeed calls collectives by names that torch has renamed; each call would warn.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    if device.type == "cpu":
        # The only op that DeepSpeed would compile here is a shared-memory collective for inference, which is never called.
        deepspeed.ops.__compatible_ops__ = {}
    # DeepSpeed reads these whatever is passed to it.
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
    if dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
        raise InputError(
            f"this process is rank {dist.get_rank()} of {dist.get_world_size()} already, it cannot become rank {rank} of {world_size}; "
            "close the first learner, or use another process"
        )
    backend, timeout = "nccl" if device.type == "cuda" else "gloo", timedelta(seconds=timeout_s)
    if not dist.is_initialized():
        bound = device if device.type == "cuda" and world_size > 1 else None  # a lone rank has no peer to bind a communicator to
        dist.init_process_group(backend, store=store or HashStore(), rank=rank, world_size=world_size, timeout=timeout, device_id=bound)
    deepspeed.init_distributed(dist_backend=backend, timeout=timeout, auto_mpi_discovery=False, verbose=False)
    return device


def leave() -> None:
    """Leave the process group of `join`."""
    if dist.is_initialized():
        deepspeed.comm.destroy_process_group()


class Engine:
    """One rank's share of the optimiser. Every method but `weights_metadata` is a collective: all ranks call it together.

    The process must have joined its group (`join`). `seed` is that of the adapters' beginning. Raises `InputError` for
    bfloat16 with ZeRO stage 0, where DeepSpeed has no float32 accumulation.
    """

    def __init__(self, policy: PolicyModel, config: LearnerConfig, device: torch.device, seed: int = 0) -> None:
        if config.dtype == "bfloat16" and config.zero_stage == 0:
            raise InputError(
                "dtype=bfloat16 with zero_stage=0 would accumulate gradients in bfloat16; set learner.zero_stage=1 "
                "(float32 master weights and accumulation, also for one rank) or learner.dtype=float32"
            )
        self._config = config
        self._hf_names = policy.hf_names
        self._adapters = {} if config.lora is None else adapters(policy)
        self._seed = seed
        # In float32 without ZeRO the gradients lie whole on every rank, and DeepSpeed would not report their norm.
        self._own_clip = config.zero_stage == 0
        self._device = device
        with redirect_stdout(io.StringIO()):  # DeepSpeed prints how much memory it takes, where a command prints its JSON
            self._ds, *_ = deepspeed.initialize(
                model=policy, optimizer=new_optimiser(policy, config), config=deepspeed_config(policy, config), dist_init_required=False
            )
        self._optimizer = getattr(self._ds.optimizer, "optimizer", self._ds.optimizer)

    def forward(
        self,
        token_ids_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        temperature: float | None = None,
        with_value: bool = False,
        adapted: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """`PolicyModel.forward` on this rank's device; of the adapters' frozen base if not `adapted`."""
        outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
        with nullcontext() if adapted else switched_off(self._adapters.values()):
            outputs = self._ds(token_ids_BT.to(self._device), mask_BT.to(self._device), temperature, with_value)
        return outputs

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradient of this rank's `loss`; the gradient of the step is the sum over ranks and calls. `last` ends it."""
        self._ds.set_gradient_accumulation_boundary(last)
        self._ds.backward(loss * dist.get_world_size(), scale_wrt_gas=False)

    def step(self, lr: float) -> float:
        """Clip the accumulated gradient, take one optimiser step with `lr`, and return the gradient's norm before clipping.

        Raises `FloatingPointError` if the norm is not finite; without ZeRO the weights are then unchanged.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        norm = self._clip() if self._own_clip else 0.0
        self._ds.step()
        if not self._own_clip:
            norm = _finite(float(self._ds.get_global_grad_norm()))
        return norm

    def _clip(self) -> float:
        limit = self._config.max_grad_norm or math.inf
        return _finite(float(torch.nn.utils.clip_grad_norm_(self._ds.module.parameters(), limit)))

    def reset_moments(self) -> None:
        """Forget the optimiser's moments, as if it were new; the weights stay."""
        self._optimizer.state.clear()

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight of the policy, whole, under its Hugging Face name, one at a time; a learned value is not part of the policy.

        Adapters are added to their matrices. A tensor is valid until the next one is asked for: under ZeRO-3 it is gathered from
        all ranks and released again.
        """
        for name, parameter in self._policy_parameters():
            with self._whole(name, parameter):
                adapter = self._adapters.get(name)
                yield self._hf_names[name], parameter.detach() if adapter is None else adapter.merged(parameter)

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the policy's weights by whole tensors under their Hugging Face names, the same on every rank; moments stay.

        Adapters start again beside them, from the same A every time.
        """
        generator = torch.Generator().manual_seed(self._seed)
        for name, parameter in self._policy_parameters():
            with self._whole(name, parameter, modify=True):
                parameter.copy_(weights[self._hf_names[name]])
                if name in self._adapters:
                    self._adapters[name].restart(generator)
        self._refresh_master_weights()

    @torch.no_grad()
    def fold(self) -> bool:
        """Add the adapters to their matrices and start them again, as `set_weights` with `named_weights` would, without a copy.

        Returns whether a matrix changed; without adapters nothing happens.
        """
        changed = False
        generator = torch.Generator().manual_seed(self._seed)
        for name, parameter in self._policy_parameters():
            if name in self._adapters:
                adapter = self._adapters[name]
                with self._whole(name, parameter, modify=True):
                    changed |= bool(adapter.b.any())
                    parameter.copy_(adapter.merged(parameter))
                    adapter.restart(generator)
        if self._adapters:
            self._refresh_master_weights()
        return changed

    def named_factors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """A and B of every adapter, whole, under the names of peft's files, each valid until the next is asked for."""
        for name, parameter in self._policy_parameters():
            if name in self._adapters:
                with self._whole(name, parameter):
                    adapter = self._adapters[name]
                    yield from zip(factor_names(self._hf_names[name]), (adapter.a.detach(), adapter.b.detach()), strict=True)

    def _whole(self, name: str, parameter: torch.nn.Parameter, modify: bool = False) -> AbstractContextManager[None]:
        """Inside, a parameter and the adapter beside it are whole; what rank 0 has made of them at the end holds if `modify`."""
        adapter = self._adapters.get(name)
        together = [parameter] if adapter is None else [parameter, adapter.a, adapter.b]
        whole: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
            together, modifier_rank=0 if modify else None, enabled=hasattr(parameter, "ds_id")
        )
        return whole

    def _refresh_master_weights(self) -> None:
        if self._config.zero_stage:
            self._ds.optimizer.refresh_fp32_params()  # its own flat copy, which the next step would write over the weights

    def weights_metadata(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Name, dtype and full shape of every weight, in the order of `named_weights`; nothing is gathered."""
        return [
            (self._hf_names[name], parameter.dtype, tuple(getattr(parameter, "ds_shape", parameter.shape)))
            for name, parameter in self._policy_parameters()
        ]

    def _policy_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, parameter) for name, parameter in self._ds.module.named_parameters() if name in self._hf_names]

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write weights, optimiser moments and `state` (plain JSON types) for an exact resume with the same ranks and stage."""
        self._ds.save_checkpoint(str(folder), tag="learner", client_state={"pickaxe": state}, save_latest=False)

    def load(self, folder: Path) -> dict[str, Any]:
        """Read what `save` wrote and return its `state`. Raises `InputError` if it is not there or from another setup."""
        try:
            path, client_state = self._ds.load_checkpoint(str(folder), tag="learner")
        except (OSError, RuntimeError, AssertionError, KeyError, ValueError) as error:
            raise InputError(
                f"checkpoint {str(folder)!r} cannot be read: {error}; resume with the model, ranks and ZeRO stage that wrote it"
            ) from error
        if path is None:
            raise InputError(f"no learner checkpoint in {str(folder)!r}; expected the folder that a run saved with this number of ranks")
        state: dict[str, Any] = client_state["pickaxe"]
        return state

    def close(self) -> None:
        """Release DeepSpeed's buffers and hooks; the process stays in its group."""
        self._ds.destroy()


def _finite(norm: float) -> float:
    if not math.isfinite(norm):
        raise FloatingPointError(
            f"the gradient's norm is {norm}; lower learner.lr, clip (learner.max_grad_norm) or look for a broken reward"
        )
    return norm
