"""Log-probs against the plain softmax, model folders that are whole or refused, and the tiny model."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.errors import InputError
from learner.config import TinyModelConfig
from learner.logprob import PolicyModel
from learner.model import export_model, load_model, new_folder
from learner.smollm2 import convert_smollm2
from learner.tiny import build_tiny
from tests.learner.engine_cases import VOCAB, batch, naive_logp, write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    folder = tmp_path_factory.mktemp("models")
    return {tied: write_model(folder / f"tied{tied}", tied) for tied in (True, False)}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_log_probs_equal_the_full_softmax(models: dict[bool, str], tied: bool, temperature: float, chunk: int) -> None:
    whole = batch()
    lm = AutoModelForCausalLM.from_pretrained(models[tied], dtype=torch.float64)
    naive_M = naive_logp(lm, whole.token_ids_BT, temperature)[whole.mask_BT[:, 1:]]
    logits_BTV = lm(whole.token_ids_BT).logits[:, :-1] / temperature
    entropy_M = torch.distributions.Categorical(logits=logits_BTV).entropy()[whole.mask_BT[:, 1:]]
    naive_M.square().sum().backward()
    expected = {name: weight.grad for name, weight in lm.named_parameters()}

    policy = PolicyModel(load_model(models[tied], torch.float32), temperature, chunk)
    logp_M, got_entropy_M, _ = policy(whole.token_ids_BT, whole.mask_BT)
    # A log-prob of -7 in float32 is a difference of numbers whose spacing is 5e-7.
    torch.testing.assert_close(logp_M.double(), naive_M, rtol=5e-7, atol=2e-6)
    torch.testing.assert_close(got_entropy_M.double(), entropy_M, rtol=0, atol=2e-6)
    assert not got_entropy_M.requires_grad
    logp_M.square().sum().backward()
    assert sorted(policy.hf_names.values()) == sorted(expected)
    for name, weight in policy.named_parameters():
        want = expected[policy.hf_names[name]]
        torch.testing.assert_close(weight.grad.double(), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


def test_padding_on_the_right_is_never_seen(models: dict[bool, str]) -> None:
    policy = PolicyModel(load_model(models[True], torch.float32))
    whole = batch()
    mask_BT = whole.mask_BT.clone()
    mask_BT[:, 7:] = False
    other_BT = whole.token_ids_BT.clone()
    other_BT[:, 7:] = 0
    assert torch.equal(policy(whole.token_ids_BT, mask_BT)[0], policy(other_BT, mask_BT)[0])


def test_no_sampled_token_still_reaches_every_parameter(models: dict[bool, str]) -> None:
    policy = PolicyModel(load_model(models[False], torch.float32))
    logp_M, *_ = policy(batch().token_ids_BT, torch.zeros_like(batch().mask_BT))
    assert logp_M.shape == (0,)
    logp_M.sum().backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in policy.parameters())


def test_dropout_is_off(models: dict[bool, str], tmp_path: Path) -> None:
    lm = load_model(models[True], torch.float32)
    lm.config.attention_dropout = 0.5
    export_model(lm.state_dict(), lm.config, models[True], tmp_path / "dropout")
    assert json.loads((tmp_path / "dropout" / "config.json").read_text())["attention_dropout"] == 0.5
    policy = PolicyModel(load_model(str(tmp_path / "dropout"), torch.float32)).train()
    whole = batch()
    assert torch.equal(policy(whole.token_ids_BT, whole.mask_BT)[0], policy(whole.token_ids_BT, whole.mask_BT)[0])


@pytest.mark.parametrize("tied", [True, False])
def test_export_round_trip(models: dict[bool, str], tmp_path: Path, tied: bool) -> None:
    lm = load_model(models[tied], torch.float32)
    export_model(lm.state_dict(), lm.config, models[tied], tmp_path / "copy")
    copy = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    assert (copy.get_input_embeddings().weight is copy.get_output_embeddings().weight) == tied
    token_ids_BT = batch().token_ids_BT
    assert torch.equal(copy(token_ids_BT).logits, lm(token_ids_BT).logits)


def _break(folder: Path, remove: str) -> str:
    for path in folder.glob(remove):
        path.unlink()
    return str(folder)


@pytest.mark.parametrize(
    ("remove", "message"),
    [("config.json", "lacks config.json"), ("*.safetensors", r"lacks weights \("), ("tokenizer.json", r"lacks tokenizer \(")],
)
def test_a_folder_says_what_it_lacks(tmp_path: Path, remove: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(_break(Path(write_model(tmp_path / "model", True)), remove), torch.float32)


def test_wrong_models_are_refused(models: dict[bool, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_model(str(tmp_path / "nowhere"), torch.float32)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model("no-such-owner/no-such-model", torch.float32)

    lm = load_model(models[True], torch.float32)
    cut = {name: weight for name, weight in lm.state_dict().items() if "layers.1.mlp" not in name}
    export_model(cut, lm.config, models[True], tmp_path / "cut")
    with pytest.raises(InputError, match=r"layers\.1\.mlp.*would start at random"):
        load_model(str(tmp_path / "cut"), torch.float32)

    (tmp_path / "cut" / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(str(tmp_path / "cut"), torch.float32)

    lm.config.final_logit_softcapping = 30.0
    export_model(lm.state_dict(), lm.config, models[True], tmp_path / "capped")
    with pytest.raises(InputError, match=r"final_logit_softcapping=30\.0"):
        load_model(str(tmp_path / "capped"), torch.float32)


def test_a_folder_that_fails_half_way_is_absent(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="half way"), new_folder(tmp_path / "model") as folder:
        (folder / "config.json").write_text("{}")
        raise RuntimeError("half way")
    assert not list(tmp_path.iterdir())


def test_tiny_model_is_reproducible_and_small(models: dict[bool, str], tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models[True])
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build_tiny(tmp_path / name, tokenizer, TinyModelConfig(seed=seed))
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    lm = load_model(str(tmp_path / "a"), torch.float32)
    assert 250_000 < lm.num_parameters() < 400_000
    assert (lm.config.vocab_size, lm.config.head_dim) == (VOCAB, 32)
    assert (lm.config.eos_token_id, lm.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_tiny_model_refuses_heads_that_the_generator_lacks() -> None:
    with pytest.raises(ValidationError, match="set hidden_size to 96 or 192"):
        TinyModelConfig(hidden_size=128, heads=3, kv_heads=1)
    with pytest.raises(ValidationError, match="not a multiple"):
        TinyModelConfig(heads=4, kv_heads=3)


@pytest.mark.slow
def test_smollm2_is_a_working_chat_model(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    convert_smollm2(tmp_path / "smollm2")
    lm = load_model(str(tmp_path / "smollm2"), torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "smollm2")
    assert lm.get_input_embeddings().weight is lm.get_output_embeddings().weight
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.eos_token_id == lm.config.eos_token_id
    assert not hasattr(lm.config, "quantization_config")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = lm.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(reply) == "The capital of France is Paris.<|im_end|>"
