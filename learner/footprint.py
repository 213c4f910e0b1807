"""How much memory a learner rank takes, as sums of products: the same formulas for every model, dtype and ZeRO stage.

With P parameters, T of them trained, R ranks, d bytes an element of the training dtype, and a stage that shards from there on:

    weights              d P                         / R from stage 3
    master weights       4 T / R                     from stage 1; without ZeRO the weights themselves are float32
    gradients            4 T                         / R from stage 2; stage 1 in bfloat16 has 2 T beside them
    moments of AdamW     8 T                         / R from stage 1; SGD has none

Stage 1 accumulates whole gradients on every rank, so that it saves less here than its usual figure says. Tensors of the tests'
learner are counted against these lines, and activations against what autograd keeps.
"""

from dataclasses import dataclass

from learner.config import LearnerConfig, LoraConfig
from learner.shape import ModelShape, Widths

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of one element."""
_BUCKET_ELEMENTS = 50_000_000
_GATHERED_ELEMENTS = 1_000_000_000
"""How many parameters DeepSpeed's ZeRO-3 keeps gathered at most, its default."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One line of an estimate; `why` is the formula with its numbers."""

    name: str
    bytes: int
    why: str


def parameter_counts(shape: ModelShape, *, lora: LoraConfig | None, value: str | None) -> tuple[int, int]:
    """Parameters of a learner, and how many of them are trained, with adapters and a learned value (`shared` or `separate`).

    A backbone of the value's own has adapters of its own. Adapters and heads count as nothing where the shape has no widths.
    """
    head = 0 if value is None or shape.widths is None else shape.widths.hidden + 1
    adapters = 0 if lora is None else lora.rank * sum(shape.linears.get(name, 0) for name in lora.targets or shape.linears)
    backbones = backbones_of(value)
    parameters = shape.parameters + (backbones - 1) * shape.backbone + backbones * adapters + head
    return parameters, parameters if lora is None else backbones * adapters + head


def backbones_of(value: str | None) -> int:
    """Backbones that are trained at the same time: a `separate` value has one beside the policy's."""
    return 2 if value == "separate" else 1


def state_parts(parameters: int, trained: int, config: LearnerConfig, ranks: int) -> list[Part]:
    """Weights, gradients and optimiser states of one rank, between the first optimiser step and the last."""
    stage, size = config.zero_stage, BYTES[config.dtype]
    sharded = {number: ranks if stage >= number else 1 for number in (1, 2, 3)}
    moments = 8 if config.optimizer == "adamw" else 0
    low = 2 if stage == 1 and config.dtype == "bfloat16" else 0
    kinds = "float32 and bfloat16" if low else "float32"
    parts = [
        Part(name="weights", bytes=size * parameters // sharded[3], why=_why(parameters, size, sharded[3], config.dtype)),
        Part(name="gradients", bytes=(4 + low) * trained // sharded[2], why=_why(trained, 4 + low, sharded[2], kinds)),
        Part(name="moments", bytes=moments * trained // sharded[1], why=_why(trained, moments, sharded[1], config.optimizer)),
    ]
    if stage:
        parts.insert(1, Part(name="master weights", bytes=4 * trained // ranks, why=_why(trained, 4, ranks, "float32")))
        bucket = min(_BUCKET_ELEMENTS, parameters)
        gathered = min(_GATHERED_ELEMENTS, parameters) if stage == 3 else 0
        why = f"{amount(bucket)} elements on their way" + (f", {amount(gathered)} gathered at most" if gathered else "")
        parts.append(Part(name="communication", bytes=size * (bucket + gathered), why=why))
    return parts


def layer_bytes(widths: Widths, size: int) -> int:
    """What one layer keeps of one token for its backward pass, with a fused attention.

    Two norms keep their input in float32, normalised, and scaled; attention keeps queries, keys, values and its output; a gated MLP
    four tensors of its width; normalised queries and keys are kept like the norms' tensors. A layer of another kind counts the same.
    """
    kept = size * (4 * widths.hidden + 2 * widths.query + 2 * widths.key + 4 * widths.mlp) + 8 * widths.hidden
    return kept + (4 + size) * (widths.query + widths.key) * widths.qk_norm


def activation_parts(widths: Widths, config: LearnerConfig, *, tokens: int, backbones: int = 1) -> list[Part]:
    """What a micro-batch of so many padded `tokens` keeps for its backward pass; the logits are those of one chunk of the head.

    A chunk has four tensors in float32 at a time, forwards and backwards: logits, log-probs, probabilities, and their product or
    gradient. With checkpointing the layers keep their inputs, and one of them at a time everything.
    """
    size = BYTES[config.dtype]
    layer, layers = layer_bytes(widths, size), backbones * widths.layers
    if config.gradient_checkpointing:
        total = tokens * (layers * size * widths.hidden + layer)
        why = f"{tokens:,} tokens: the input of {layers} layers, and one layer of {layer:,} bytes a token"
    else:
        total = tokens * layers * layer
        why = f"{tokens:,} tokens x {layers} layers x {layer:,} bytes, without gradient checkpointing"
    rows = min(config.head_chunk_tokens, tokens)
    return [
        Part(name="activations", bytes=total, why=why),
        Part(name="logits", bytes=16 * rows * widths.vocab, why=f"{rows:,} tokens x {widths.vocab:,} words, four times in float32"),
    ]


def _why(count: int, size: int, shards: int, kind: str) -> str:
    return f"{amount(count)} x {size} bytes ({kind})" + (f" / {shards} ranks" if shards > 1 else "")


def amount(count: int) -> str:
    """A number of parameters in words: `4.02 billion`, `188 thousand`."""
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return str(count)
