"""The reference policy of a KL: the policy as a phase found it, frozen.

Shape suffixes: `_B` rows, `_T` padded token positions, `_M` sampled tokens of a micro-batch in row-major order.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_model, save_model

from envs.errors import InputError
from learner.engine import Engine
from learner.logprob import PolicyModel

_FILE = "reference.safetensors"


class Reference(Protocol):
    """What the learner asks of a reference. `logp` is a collective: all ranks call it together."""

    def logp(self, token_ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Its log-probs of the sampled tokens, in nats, without a gradient; shape (M,)."""

    def save(self, folder: Path) -> None:
        """Write what an engine's checkpoint does not have; one rank calls it."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote. Raises `InputError` if it is not there."""


class FrozenCopy:
    """A whole copy of the policy on every rank. `policy` is taken, `weights` are copied into it by their Hugging Face names."""

    def __init__(self, policy: PolicyModel, weights: Iterable[tuple[str, torch.Tensor]], device: torch.device) -> None:
        self._policy = policy.eval().requires_grad_(False).to(device)
        self._device = device
        frozen = {policy.hf_names[name]: parameter for name, parameter in self._policy.named_parameters()}
        for name, weight in weights:
            frozen[name].copy_(weight)

    @torch.no_grad()
    def logp(self, token_ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """See `Reference.logp`."""
        logp_M: torch.Tensor = self._policy(token_ids_BT, mask_BT)[0]
        return logp_M

    def save(self, folder: Path) -> None:
        """See `Reference.save`."""
        save_model(self._policy, str(folder / _FILE))

    def load(self, folder: Path) -> None:
        """See `Reference.load`."""
        if not (folder / _FILE).is_file():
            raise InputError(f"{str(folder)!r} has no reference policy; it was saved by a run without a KL, set algorithm.kl_coef=0")
        load_model(self._policy, folder / _FILE, device=str(self._device))


class FrozenBase:
    """The base of the policy's adapters, which is the policy of a phase's beginning, because there they begin at 0: no copy."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @torch.no_grad()
    def logp(self, token_ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """See `Reference.logp`."""
        return self._engine.forward(token_ids_BT, mask_BT, adapted=False)[0]

    def save(self, folder: Path) -> None:
        """See `Reference.save`: the engine's checkpoint has the base."""

    def load(self, folder: Path) -> None:
        """See `Reference.load`."""
