"""The memory estimate against real tensors: a learner's states, what autograd keeps, and the head's peak."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen3Config

from learner.config import LearnerConfig, LoraConfig, ModelShapeConfig
from learner.footprint import activation_parts, amount, layer_bytes, parameter_counts, state_parts
from learner.logprob import Head, PolicyModel
from learner.shape import ModelShape, Widths, shape_of, stated_shape
from tests.learner.engine_cases import write_model
from tests.learner.footprint_cases import ALONE, config, count, count_rank

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "untied", tied=False)


def check(counted: dict[str, int], dtype: str, stage: int, ranks: int, shape: ModelShape) -> None:
    """Weights, master weights and moments are exact; all together lie between the sum of the lines with and without communication."""
    parts = {part.name: part.bytes for part in state_parts(shape.parameters, shape.parameters, config(dtype, stage), ranks)}
    assert counted["parameters"] == shape.parameters
    for name in ("weights", "moments", "master weights"):
        # Tensors below DeepSpeed's threshold, such as norms, stay whole; ranks get equal shares of what is padded a little.
        tolerance = 0 if ranks == 1 else 2e-3 if name != "weights" else 0.02
        expected = parts.get(name, parts["weights"])  # without ZeRO the weights are their own masters
        assert counted[name] == pytest.approx(expected, rel=tolerance), (dtype, stage, name)
    total, communication = sum(parts.values()), parts.get("communication", 0)
    assert 0.97 * (total - communication) <= counted["all"] <= 1.03 * total, (dtype, stage)


@pytest.mark.parametrize(("dtype", "stage"), ALONE)
def test_one_rank_has_the_tensors_of_the_estimate(dtype: str, stage: int, model: str) -> None:
    check(count(model, dtype, stage), dtype, stage, 1, shape_of(AutoConfig.from_pretrained(model)))


@pytest.mark.slow
def test_two_ranks_have_the_tensors_of_the_estimate(model: str, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(count_rank, args=(2, model, tmp_path), nprocs=2)
    shape = shape_of(AutoConfig.from_pretrained(model))
    for rank in range(2):
        for (dtype, stage), counted in torch.load(tmp_path / f"counted{rank}.pt", weights_only=False).items():
            check(counted, dtype, stage, 2, shape)


@given(
    billions=st.integers(1, 500),
    ranks=st.integers(1, 64),
    stage=st.integers(1, 3),
    dtype=st.sampled_from(list(DTYPES)),
    share=st.integers(1, 100),
)
def test_twice_the_ranks_halve_what_a_stage_shards_and_nothing_else(billions: int, ranks: int, stage: int, dtype: str, share: int) -> None:
    sharded_from = {"master weights": 1, "moments": 1, "gradients": 2, "weights": 3, "communication": 4}
    parameters = billions * 10**9
    one, two = (state_parts(parameters, parameters * share // 100, config(dtype, stage), count) for count in (ranks, 2 * ranks))
    for before, after in zip(one, two, strict=True):
        halved = sharded_from[before.name] <= stage
        assert after.bytes == pytest.approx(before.bytes / (2 if halved else 1), abs=1), before.name


def test_sgd_has_no_moments() -> None:
    (moments,) = (part for part in state_parts(1000, 1000, LearnerConfig(optimizer="sgd"), 1) if part.name == "moments")
    assert moments.bytes == 0


@pytest.mark.parametrize("value", [None, "shared", "separate"])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=3), LoraConfig(rank=2, targets=("q_proj", "down_proj"))])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_counted_as_the_policy_has_them(tied: bool, lora: LoraConfig | None, value: str | None) -> None:
    settings = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    policy = PolicyModel(AutoModelForCausalLM.from_config(settings), value=value, lora=lora)  # type: ignore[arg-type]
    parameters = list(policy.parameters())
    counts = sum(one.numel() for one in parameters), sum(one.numel() for one in parameters if one.requires_grad)
    assert parameter_counts(shape_of(settings), lora=lora, value=value) == counts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_activations_are_what_autograd_keeps(kind: type, dtype: str) -> None:
    for checkpointing in (False, True):
        kept, widths = zip(*(_kept(kind, dtype, layers, checkpointing) for layers in (1, 3)), strict=True)
        token = (kept[1] - kept[0]) / 2 / _TOKENS
        expected = DTYPES[dtype].itemsize * widths[0].hidden if checkpointing else layer_bytes(widths[0], DTYPES[dtype].itemsize)
        # Norms and attention also keep a number a head and token.
        assert expected <= token <= 1.01 * expected, (checkpointing, token, expected)


_TOKENS = 200


def _kept(kind: type, dtype: str, layers: int, checkpointing: bool) -> tuple[int, Widths]:
    """Bytes that the forward pass of `_TOKENS` tokens keeps beside the parameters."""
    settings = kind(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
    )
    lm = AutoModelForCausalLM.from_config(settings, dtype=DTYPES[dtype])
    if checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = PolicyModel(lm).train()
    own = {one.untyped_storage().data_ptr() for one in [*policy.parameters(), *policy.buffers()]}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    mask_BT = torch.zeros(2, _TOKENS // 2, dtype=torch.bool)
    mask_BT[:, 1] = True
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _outputs = policy(torch.zeros(2, _TOKENS // 2, dtype=torch.long), mask_BT)
    return sum(one.untyped_storage().nbytes() for key, one in kept.items() if key not in own), shape_of(settings).widths  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_head_takes_four_copies_of_a_chunk_of_logits(dtype: str) -> None:
    words, width, chunk = 2000, 16, 128
    head = Head(torch.nn.Linear(width, words, bias=False, dtype=DTYPES[dtype]), chunk)
    hidden_MD = torch.randn(4 * chunk, width, dtype=DTYPES[dtype], requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        # The entropy's graph is let go before the backward pass, as the policy does without an entropy bonus.
        head(hidden_MD, torch.zeros(4 * chunk, dtype=torch.long), 1.0)[0].sum().backward()
    now = peak = 0
    for event in sorted(recorded.profiler.kineto_results.events(), key=lambda one: one.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    widths = Widths(layers=1, attention_layers=1, hidden=width, query=width, key=width, mlp=width, vocab=words, qk_norm=False)
    *_, logits = activation_parts(widths, LearnerConfig(head_chunk_tokens=chunk), tokens=4 * chunk)
    assert logits.bytes == 16 * chunk * words
    assert peak == pytest.approx(logits.bytes, rel=0.05)


def test_checkpointing_keeps_the_inputs_and_one_layer() -> None:
    widths = Widths(layers=10, attention_layers=10, hidden=4, query=4, key=4, mlp=8, vocab=7, qk_norm=False)
    whole = 2 * (4 * 4 + 2 * 4 + 2 * 4 + 4 * 8) + 8 * 4  # 160 bytes a token and layer in bfloat16, by hand
    for checkpointing, expected in ((False, 5 * 10 * whole), (True, 5 * (10 * 2 * 4 + whole))):
        settings = LearnerConfig(dtype="bfloat16", zero_stage=1, gradient_checkpointing=checkpointing)
        assert activation_parts(widths, settings, tokens=5)[0].bytes == expected


STATED = {
    "billions": 0.5,
    "layers": 4,
    "hidden_size": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 32,
    "intermediate_size": 96,
    "vocab_size": 61,
}


def test_a_stated_shape_is_that_of_the_model_it_states() -> None:
    settings = Qwen3Config(
        vocab_size=61,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    stated, real = stated_shape(ModelShapeConfig.model_validate(STATED)), shape_of(settings)
    assert stated is not None and stated.parameters == 500_000_000
    assert (stated.widths, dict(stated.linears), stated.missing) == (real.widths, dict(real.linears), ())


def test_a_shape_says_what_it_does_not_know() -> None:
    assert stated_shape(ModelShapeConfig()) is None
    partly = stated_shape(ModelShapeConfig(billions=4, layers=36, heads=32))
    assert partly is not None and partly.widths is None and partly.parameters == 4_000_000_000
    assert partly.missing == tuple(f"model.shape.{name}" for name in STATED if name not in ("billions", "layers", "heads"))


def test_numbers_of_parameters_are_read_as_words() -> None:
    assert [amount(count) for count in (12, 188_288, 57_060_000, 4_022_468_096)] == ["12", "188 thousand", "57.1 million", "4.02 billion"]
