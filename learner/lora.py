"""Low-rank adapters (LoRA): a trained update beside each frozen matrix of a policy, built with the library peft.

    y = W x + s B A x          s = alpha / rank          W (out, in), A (rank, in), B (out, rank)

B is 0 at first, so that a policy begins as it was. Generators, probes and exports know nothing of it: they get W + s B A.
Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.

Simplifications: no dropout; only `nn.Linear` layers of the backbone, so neither embeddings, nor the output layer, nor experts whose
matrices are stacked in one tensor.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from envs.errors import InputError, did_you_mean
from learner.config import LoraConfig
from learner.model import new_folder

_NAME = "default"
"""What peft calls the only adapter of a layer."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """What peft put around one linear layer. Example: `Adapter(layer=backbone.layers[0].self_attn.q_proj)`."""

    layer: Any

    def __post_init__(self) -> None:
        assert isinstance(self.layer.get_base_layer(), nn.Linear), "only linear layers are adapted"

    @property
    def a(self) -> nn.Parameter:
        """A (rank, in)."""
        weight: nn.Parameter = self.layer.lora_A[_NAME].weight
        return weight

    @property
    def b(self) -> nn.Parameter:
        """B (out, rank)."""
        weight: nn.Parameter = self.layer.lora_B[_NAME].weight
        return weight

    @torch.no_grad()
    def merged(self, weight: torch.Tensor) -> torch.Tensor:
        """W + s B A, added in float32 and rounded once to the dtype of W: a new tensor. All three must be whole.

        Degenerates: in bfloat16 a change of an element by less than half the spacing of its neighbours is rounded away.
        """
        scale = self.layer.scaling[_NAME]
        return torch.addmm(weight.float(), self.b.float(), self.a.float(), alpha=scale).to(weight.dtype)

    @torch.no_grad()
    def restart(self, generator: torch.Generator) -> None:
        """B = 0 and A drawn uniformly from +-1/sqrt(in), as peft begins."""
        bound = 1 / math.sqrt(self.a.shape[1])
        self.a.copy_((2 * torch.rand(self.a.shape, generator=generator) - 1) * bound)
        self.b.zero_()


def add_adapters(backbone: nn.Module, config: LoraConfig) -> None:
    """Freeze `backbone` and put adapters around its linear layers, in place; its parameters stay the same objects.

    Raises `InputError` for a target that is no linear layer of it.
    """
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    kinds = sorted({_kind(name) for name in linear})
    if not linear:
        raise InputError(f"a {type(backbone).__name__} has no linear layer that LoRA could adapt; leave learner.lora out")
    for target in config.targets or ():
        if target not in kinds:
            raise InputError(
                f"learner.lora.targets has {target!r}, which is no linear layer of the model's backbone; {did_you_mean(target, kinds)}. "
                "Embeddings and the output layer stay frozen: where they are one tied matrix, no adapter of one is right for both"
            )
    from peft import inject_adapter_in_model  # seconds, and only runs with adapters need it

    backbone.requires_grad_(False)
    inject_adapter_in_model(_peft_config(config, [name for name in linear if _kind(name) in (config.targets or kinds)]), backbone)


def adapters(policy: nn.Module) -> dict[str, Adapter]:
    """The adapters of a policy that `add_adapters` was called on, by the name of the matrix W among its parameters."""
    from peft.tuners.lora import LoraLayer

    return {f"{name}.base_layer.weight": Adapter(layer=module) for name, module in policy.named_modules() if isinstance(module, LoraLayer)}


@contextmanager
def switched_off(some: Iterable[Adapter]) -> Iterator[None]:
    """Inside, s is 0: the policy is its frozen base, exactly.

    The layers are still called, and nothing but a number changes, so that ZeRO-3 sees the modules in the order that it knows.
    """
    layers = [one.layer for one in some]
    try:
        for layer in layers:
            layer.set_scale(_NAME, 0.0)
        yield
    finally:
        for layer in layers:
            layer.set_scale(_NAME, 1.0)


def export_adapter(factors: Mapping[str, torch.Tensor], config: LoraConfig, base: str, out_dir: Path) -> None:
    """Write adapters in peft's own format, for the model `base`; `factors` are A and B by `factor_names`."""
    with new_folder(out_dir) as folder:
        kinds = {_kind(name.removesuffix(".lora_A.weight")) for name in factors if name.endswith(".lora_A.weight")}
        written = _peft_config(config, sorted(kinds))
        written.base_model_name_or_path, written.task_type, written.inference_mode = base, "CAUSAL_LM", True
        written.save_pretrained(str(folder))
        save_file(dict(factors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_model.safetensors").chmod(0o644)


def factor_names(hf_name: str) -> tuple[str, str]:
    """What peft's files call A and B beside the matrix of this Hugging Face name."""
    stem = f"base_model.model.{hf_name.removesuffix('.weight')}"
    return f"{stem}.lora_A.weight", f"{stem}.lora_B.weight"


def _kind(name: str) -> str:
    """The last part of a module's name, which the layers of all blocks share: `q_proj`."""
    return name.rpartition(".")[2]


def _peft_config(config: LoraConfig, targets: list[str]) -> Any:
    from peft import LoraConfig as PeftConfig

    return PeftConfig(r=config.rank, lora_alpha=config.alpha or 2 * config.rank, target_modules=targets, lora_dropout=0.0)
