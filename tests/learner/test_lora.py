"""Adapters take the steps of textbook LoRA, and everybody else sees a whole policy: generators, exports, the reference of a KL."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from envs.errors import InputError
from learner.config import AlgorithmConfig, LearnerConfig, LoraConfig
from learner.learner import Learner
from learner.logprob import PolicyModel
from learner.lora import adapters, add_adapters
from learner.model import load_model
from learner.optimiser import new_optimiser
from tests.learner.engine_cases import ACTOR_CRITIC, REINFORCE, batch, naive_logp, sgd, split, value_batch, write_model
from tests.learner.lora_cases import ADAPTED, KL, LORA, factors, merged, run_lora_rank, textbook

GRPO = AlgorithmConfig(method="grpo", kl_coef=1.0)
SEPARATE = ACTOR_CRITIC.model_copy(update={"value": "separate"})
PROBE_BT = batch().token_ids_BT[:2]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    folder = tmp_path_factory.mktemp("models")
    return {tied: write_model(folder / f"tied{tied}", tied) for tied in (True, False)}


def learner(model: str, algorithm: AlgorithmConfig = REINFORCE, seed: int = 0, **changes: object) -> Learner:
    config = LearnerConfig.model_validate({"warmup_steps": 0, "lr": 1e-2, "lora": LORA, **changes})
    return Learner(model, config, algorithm, total_steps=4, seed=seed)


def weights_of(one: Learner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in one.named_weights()}


def loaded(model: str) -> dict[str, torch.Tensor]:
    return {name: weight.detach().double() for name, weight in AutoModelForCausalLM.from_pretrained(model).named_parameters()}


def same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(weight, others[name]) for name, weight in some.items())


@pytest.mark.parametrize(("world_size", "tied"), [(1, False), (2, True)])
def test_any_split_takes_the_textbook_steps(world_size: int, tied: bool, models: dict[bool, str], tmp_path: Path) -> None:
    model = models[tied]
    if world_size == 1:
        run_lora_rank(0, 1, model, tmp_path)
    else:
        torch.multiprocessing.spawn(run_lora_rank, args=(2, model, tmp_path), nprocs=2)
    base = loaded(model)
    start = factors(tmp_path / "start 0" / "adapter")
    assert start.keys() == {name for name in base if name.split(".")[-2] in ADAPTED}
    assert all(a.any() and not b.any() for a, b in start.values())
    first = textbook(model, base, start, 2)
    between = merged(base, first)
    last = merged(between, textbook(model, between, start, 2))
    one = Learner(model, sgd(0), REINFORCE, total_steps=1)
    announced = one.weights_metadata()
    one.close()
    for rank in range(world_size):
        results = torch.load(tmp_path / f"lora{rank}.pt", weights_only=False)
        for stage, phases in results.items():
            for found, expected in zip(phases, (between, last), strict=True):
                assert found["announced"] == announced, "what is pushed has names, types and shapes as without adapters"
                assert found["weights"].keys() == expected.keys()
                for name, weight in found["weights"].items():
                    assert torch.equal(weight.double(), base[name]) or name in start, name
                    torch.testing.assert_close(weight.double(), expected[name], rtol=0, atol=2e-6, msg=f"{stage} {name}")
                lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
                lm.load_state_dict(expected, strict=False)
                with torch.no_grad():
                    torch.testing.assert_close(torch.tensor(found["logprobs"]).double(), naive_logp(lm, PROBE_BT), rtol=0, atol=1e-5)
                assert found["kl"][0] == 0 < found["kl"][1], "the reference is the policy that the phase began with"
    assert min(float((last[name] - base[name]).abs().max()) for name in start) > 1e-4, "every adapter moved visibly"
    for stage in range(4):
        got = factors(tmp_path / f"after {stage}" / "adapter")
        for name, (want_a, want_b) in first.items():
            torch.testing.assert_close(got[name][0], want_a, rtol=0, atol=2e-6)
            torch.testing.assert_close(got[name][1], want_b, rtol=0, atol=2e-6)
        assert not (tmp_path / f"folded {stage}" / "adapter").exists(), "an adapter is for the model that was loaded, or it misleads"


@pytest.mark.parametrize("algorithm", [REINFORCE, ACTOR_CRITIC, SEPARATE], ids=["no value", "shared", "separate"])
def test_only_adapters_and_a_value_head_are_trained(models: dict[bool, str], algorithm: AlgorithmConfig) -> None:
    value = None if algorithm is REINFORCE else algorithm.value
    policy = PolicyModel(load_model(models[True], torch.float32), value=value, lora=LORA)
    trained = {name for name, weight in policy.named_parameters() if weight.requires_grad}
    heads = {name for name in trained if "lora_" not in name}
    assert heads == ({"value_head.weight", "value_head.bias"} if value else set())
    assert len(trained) == len(heads) + 2 * 2 * len(ADAPTED) * (2 if value == "separate" else 1)
    held = {id(weight) for group in new_optimiser(policy, LearnerConfig()).param_groups for weight in group["params"]}
    assert held == {id(weight) for name, weight in policy.named_parameters() if name in trained}
    logp_M, _, _ = policy(batch().token_ids_BT, torch.zeros_like(batch().mask_BT))
    logp_M.sum().backward()
    reached = {name for name, weight in policy.named_parameters() if weight.grad is not None}
    assert reached == {name for name in trained if name.startswith("backbone.")}, "an empty micro-batch runs the same collectives"


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("algorithm", [ACTOR_CRITIC, SEPARATE], ids=["shared", "separate"])
def test_a_value_learns_beside_adapters(models: dict[bool, str], algorithm: AlgorithmConfig, stage: int) -> None:
    one = learner(models[True], algorithm, zero_stage=stage)
    losses = [one.train_step([value_batch()])["value/loss"].value for _ in range(8)]
    assert losses[-1] < 0.8 * losses[0]
    assert [name for name, _ in one.named_weights()] == list(loaded(models[True]))
    one.close()


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_and_peft_read_the_export(models: dict[bool, str], tied: bool, tmp_path: Path) -> None:
    one = learner(models[tied], lora=LoraConfig(rank=3, targets=("q_proj", "down_proj")))
    for _ in range(2):
        one.train_step([batch()])
    one.export(tmp_path / "policy")
    after = torch.tensor(one.logprobs(PROBE_BT.tolist()))
    one.close()
    with torch.no_grad():
        whole = naive_logp(AutoModelForCausalLM.from_pretrained(tmp_path / "policy"), PROBE_BT)
        adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(models[tied]), tmp_path / "policy" / "adapter")
        torch.testing.assert_close(after, whole, rtol=0, atol=1e-5)
        torch.testing.assert_close(after, naive_logp(adapted, PROBE_BT), rtol=0, atol=1e-5)
        assert (after - naive_logp(AutoModelForCausalLM.from_pretrained(models[tied]), PROBE_BT)).abs().max() > 0.01
    settings = adapted.peft_config["default"]
    assert (settings.r, settings.lora_alpha, settings.lora_dropout, settings.base_model_name_or_path) == (3, 6, 0.0, models[tied])
    before = loaded(models[tied])
    moved = {name for name, weight in loaded(str(tmp_path / "policy")).items() if not torch.equal(weight, before[name])}
    assert {name.split(".")[-2] for name in moved} == {"q_proj", "down_proj"}


@pytest.mark.parametrize("stage", range(4))
def test_resume_goes_on_bit_for_bit(models: dict[bool, str], stage: int, tmp_path: Path) -> None:
    straight = learner(models[True], GRPO, zero_stage=stage)
    straight.train_step([batch()])
    straight.begin(GRPO, LearnerConfig(zero_stage=stage, lora=LORA), 4)
    straight.train_step([batch()])
    straight.save(tmp_path / "checkpoint")
    expected = straight.train_step([batch()]), weights_of(straight)
    straight.close()

    resumed = learner(models[True], GRPO, seed=1, zero_stage=stage, lr=1e-3, warmup_steps=10)
    resumed.load(tmp_path / "checkpoint")
    metrics = resumed.train_step([batch()])
    assert metrics == expected[0] and metrics["learner/kl_ref_nats"].value > 0
    assert same(weights_of(resumed), expected[1])
    resumed.export(tmp_path / "policy")
    resumed.close()
    assert not (tmp_path / "policy" / "adapter").exists(), "the base is not the loaded one any more"
    plain = learner(models[True], GRPO, lora=None, zero_stage=stage)
    with pytest.raises(InputError, match="cannot be read"):
        plain.load(tmp_path / "checkpoint")
    plain.close()


@pytest.mark.parametrize("stage", range(4))
def test_a_new_phase_is_a_fresh_start_from_the_same_weights(models: dict[bool, str], stage: int, tmp_path: Path) -> None:
    second = learner(models[True], zero_stage=stage)
    second.train_step([batch()])
    second.export(tmp_path / "cold_started")
    config = LearnerConfig(zero_stage=stage, lora=LORA)
    second.begin(GRPO, config, 4)
    in_second = [second.train_step([batch()]) for _ in range(3)]
    expected = weights_of(second)
    second.close()

    fresh = Learner(str(tmp_path / "cold_started"), config, GRPO, total_steps=4)
    in_fresh = [fresh.train_step([batch()]) for _ in range(3)]
    assert in_second == in_fresh
    assert in_fresh[0]["learner/kl_ref_nats"].value == 0 < in_fresh[2]["learner/kl_ref_nats"].value
    assert same(weights_of(fresh), expected)
    with pytest.raises(InputError, match=r"cannot change learner\.lora"):
        fresh.begin(GRPO, config.model_copy(update={"lora": None}), 4)
    fresh.close()


@pytest.mark.parametrize(("stage", "dtype"), [*((stage, "float32") for stage in range(4)), (1, "bfloat16"), (3, "bfloat16")])
def test_a_phase_from_the_base_is_the_same_phase_again(models: dict[bool, str], stage: int, dtype: str) -> None:
    one = learner(models[True], zero_stage=stage, dtype=dtype)
    one.train_step([batch()])
    begun = []
    config = LearnerConfig.model_validate({"zero_stage": stage, "dtype": dtype, "lora": LORA, "warmup_steps": 0})
    for start in ("mark", "base"):
        one.begin(REINFORCE, config, 4, start)
        begun.append((weights_of(one), [one.train_step([batch()]) for _ in range(3)], weights_of(one)))
    one.close()
    assert begun[0][1] == begun[1][1]
    assert same(begun[0][0], begun[1][0]) and same(begun[0][2], begun[1][2]) and not same(begun[0][0], begun[0][2])


def test_the_reference_needs_no_second_copy(models: dict[bool, str]) -> None:
    copied, shared = learner(models[True], KL, lora=None), learner(models[True], KL)
    ids, masks = batch().token_ids_BT.tolist(), batch().mask_BT.int().tolist()
    for _ in range(2):
        copied.train_step([batch()])
        shared.train_step([batch()])
    expected, found = copied.judge(ids, masks), shared.judge(ids, masks)
    assert all((found[number].ref_logp_T == one.ref_logp_T).all() for number, one in expected.items())
    assert torch.tensor(shared.logprobs(ids)).sub(torch.tensor(copied.logprobs(ids))).abs().max() > 0.01, "the adapters are on again"
    for one in (copied, shared):
        one.close()


def test_gradient_checkpointing_changes_nothing(models: dict[bool, str]) -> None:
    results = []
    for recompute in (False, True):
        one = learner(models[False], KL, optimizer="sgd", lr=0.5, zero_stage=3, gradient_checkpointing=recompute)
        for _ in range(2):
            one.train_step(split([3, 0, 5], 0, 1))
        results.append(weights_of(one))
        one.close()
    for name, weight in results[0].items():
        torch.testing.assert_close(results[1][name], weight, rtol=1e-6, atol=1e-6)


def test_a_matrix_is_merged_in_float32_and_rounded_once(models: dict[bool, str]) -> None:
    policy = PolicyModel(load_model(models[True], torch.bfloat16), lora=LORA).to(torch.bfloat16)
    for name, adapter in adapters(policy).items():
        torch.nn.init.normal_(adapter.b)
        weight = policy.get_parameter(name)
        exact = weight.double() + 1.5 * adapter.b.double() @ adapter.a.double()
        found = adapter.merged(weight)
        assert found.dtype == torch.bfloat16
        # Half the spacing of bfloat16, and a rounding of float32 beside it.
        assert ((found.double() - exact).abs() <= exact.abs() * 2**-8 * 1.0001 + 1e-6).all()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("q_prj", "did you mean 'q_proj'"),
        ("embed_tokens", "where they are one tied matrix, no adapter of one is right for both"),
        ("lm_head", "is no linear layer of the model's backbone; expected one of down_proj, gate_proj"),
    ],
)
def test_only_linear_layers_of_the_backbone_can_be_targets(models: dict[bool, str], target: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        learner(models[True], lora=LoraConfig(targets=("q_proj", target)))


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(InputError, match="no linear layer that LoRA could adapt"):
        add_adapters(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=1, vocab_size=11)).transformer, LORA)
