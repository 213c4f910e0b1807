"""What a policy is made of, in numbers: read from a model's config without its weights, or as a recipe states it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from learner.config import ModelShapeConfig

_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True, kw_only=True)
class Widths:
    """The sizes of a decoder's layers, on which activations and the KV cache depend; widths are elements a token.

    Example, Qwen3-4B: `Widths(layers=36, attention_layers=36, hidden=2560, query=4096, key=1024, mlp=9728, vocab=151936, qk_norm=True)`.
    """

    layers: int
    attention_layers: int
    """Layers that keep keys and values of every token; the others keep a state of fixed size."""
    hidden: int
    query: int
    """Heads times head size."""
    key: int
    """Key heads times head size; values are as wide."""
    mlp: int
    vocab: int
    qk_norm: bool
    """Queries and keys are normalised, which keeps copies of them for the backward pass."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Parameters of a policy and, where they are known, its widths; `missing` names what a recipe would have to state."""

    parameters: int
    backbone: int
    """Parameters without an output layer of its own; of a stated shape all of them."""
    linears: Mapping[str, int]
    """Inputs and outputs of all linear layers of the backbone together, by the last part of their name, such as `q_proj`: what adapters
    of rank 1 have as parameters. Empty if nobody knows."""
    widths: Widths | None
    missing: tuple[str, ...] = ()


def shape_of(settings: Any) -> ModelShape:
    """The shape of the causal language model that a `transformers` config describes; it is built without memory for its weights."""
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(settings)
    text = settings.get_text_config()
    sizes = {name: getattr(text, name, None) for name in _SIZES}
    linears: Counter[str] = Counter()
    for name, module in lm.base_model.named_modules():
        if isinstance(module, nn.Linear):
            linears[name.rpartition(".")[2]] += module.in_features + module.out_features
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in lm.parameters()),
        backbone=sum(parameter.numel() for parameter in lm.base_model.parameters()),
        linears=linears,
        widths=_widths(text, lm) if all(sizes.values()) else None,
        missing=tuple(name for name, size in sizes.items() if not size),
    )


def _widths(text: Any, lm: Any) -> Widths:
    heads = text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    return Widths(
        layers=text.num_hidden_layers,
        attention_layers=sum(kind.endswith("attention") and kind != "linear_attention" for kind in kinds),
        hidden=text.hidden_size,
        query=heads * head_size,
        key=(getattr(text, "num_key_value_heads", None) or heads) * head_size,
        mlp=text.intermediate_size,
        vocab=text.vocab_size,
        qk_norm=any(name.endswith("q_norm") for name, _ in lm.base_model.named_modules()),
    )


def stated_shape(stated: ModelShapeConfig) -> ModelShape | None:
    """The shape that a recipe states; None if it does not even state how many parameters there are.

    Without a model to look into, every layer counts as one of attention and a gated MLP, with normalised queries and keys.
    """
    if stated.billions is None:
        return None
    parameters = round(stated.billions * 1e9)
    sizes = {
        "layers": stated.layers,
        "hidden_size": stated.hidden_size,
        "heads": stated.heads,
        "kv_heads": stated.kv_heads,
        "head_size": stated.head_size,
        "intermediate_size": stated.intermediate_size,
        "vocab_size": stated.vocab_size,
    }
    if missing := tuple(f"model.shape.{name}" for name, size in sizes.items() if size is None):
        return ModelShape(parameters=parameters, backbone=parameters, linears={}, widths=None, missing=missing)
    layers, hidden, heads, kv_heads, head_size, mlp, vocab = (size for size in sizes.values() if size is not None)
    query, key = heads * head_size, kv_heads * head_size
    widths = Widths(
        layers=layers,
        attention_layers=stated.attention_layers or layers,
        hidden=hidden,
        query=query,
        key=key,
        mlp=mlp,
        vocab=vocab,
        qk_norm=True,
    )
    block = {
        "q_proj": hidden + query,
        "k_proj": hidden + key,
        "v_proj": hidden + key,
        "o_proj": hidden + query,
        "gate_proj": hidden + mlp,
        "up_proj": hidden + mlp,
        "down_proj": hidden + mlp,
    }
    linears = {name: layers * width for name, width in block.items()}
    return ModelShape(parameters=parameters, backbone=parameters, linears=linears, widths=widths)
