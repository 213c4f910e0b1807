"""The learned value: it trains beside the policy, is saved with it, and never leaves with it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from envs.errors import InputError
from envs.metrics import reduce_metrics
from learner.config import AlgorithmConfig, LearnerConfig
from learner.learner import Learner
from tests.learner.engine_cases import (
    ACTOR_CRITIC,
    REINFORCE,
    batch,
    naive_logp,
    reference_value_steps,
    rows,
    split,
    value_batch,
    value_learner,
    value_steps,
    write_model,
)

SEPARATE = ACTOR_CRITIC.model_copy(update={"value": "separate"})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "tied", True)


def check_value_steps(model: str, by_rank: list[dict], separate: bool = False) -> None:
    """The ranks' results of `value_steps` are those of bare PyTorch, and the head is no part of the policy."""
    weights, value_M = reference_value_steps(model, separate)
    for found in by_rank:
        assert found["weights"].keys() == weights.keys() == set(found["names"])
        for name, weight in found["weights"].items():
            torch.testing.assert_close(weight, weights[name], rtol=1e-6, atol=1e-6 * float(weights[name].abs().max()), msg=name)
    judged = {number: values_T for found in by_rank for number, values_T in found["values"].items()}
    assert sum(len(found["values"]) for found in by_rank) == len(judged) == len(value_batch().mask_BT)
    torch.testing.assert_close(torch.cat([judged[number] for number in range(len(judged))]), value_M, rtol=1e-5, atol=1e-5)
    assert value_M.std() > 0.01, "a value that is the same everywhere would prove nothing"
    assert reduce_metrics(found["metrics"] for found in by_rank)["value/loss"] > 0


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("algorithm", [ACTOR_CRITIC, SEPARATE], ids=["shared", "separate"])
def test_policy_and_value_take_the_reference_steps(model: str, algorithm: AlgorithmConfig, stage: int) -> None:
    one = value_learner(model, stage, algorithm)
    check_value_steps(model, [value_steps(one, [3, 0, 5], 0, 1)], separate=algorithm is SEPARATE)
    one.close()


def test_only_a_separate_value_leaves_the_policys_step_alone(model: str) -> None:
    uncredited = vars(value_batch()) | {"credit_BT": torch.zeros_like(value_batch().credit_BT)}
    for algorithm, moves in ((ACTOR_CRITIC, True), (SEPARATE, False)):
        one = value_learner(model, 0, algorithm)
        before = {name: weight.clone() for name, weight in one.named_weights()}
        for _ in range(2):
            one.train_step([type(batch())(**uncredited)])
        assert moves == any(not torch.equal(weight, before[name]) for name, weight in one.named_weights())
        one.close()


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("algorithm", [ACTOR_CRITIC, SEPARATE], ids=["shared", "separate"])
def test_a_checkpoint_has_the_value_and_an_export_has_not(model: str, algorithm: AlgorithmConfig, stage: int, tmp_path: Path) -> None:
    config = LearnerConfig(zero_stage=stage, warmup_steps=0)
    ids, masks = value_batch().token_ids_BT.tolist(), value_batch().mask_BT.int().tolist()

    def built() -> Learner:
        return Learner(model, config, algorithm, total_steps=4)

    straight = built()
    straight.train_step([value_batch()])
    straight.save(tmp_path / "checkpoint")
    expected = [straight.judge(ids, masks), straight.train_step([value_batch()]), straight.judge(ids, masks)]
    straight.export(tmp_path / "policy")
    straight.close()

    resumed = built()
    assert not any(one.values_T.any() for one in resumed.judge(ids, masks).values()), "the head starts at 0"
    resumed.load(tmp_path / "checkpoint")
    found = [resumed.judge(ids, masks), resumed.train_step([value_batch()]), resumed.judge(ids, masks)]
    resumed.close()
    assert found[1] == expected[1]
    for mine, theirs in ((found[0], expected[0]), (found[2], expected[2])):
        assert all((mine[number].values_T == one.values_T).all() for number, one in theirs.items())
        assert any(one.values_T.any() for one in theirs.values())
    _, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", output_loading_info=True)
    assert not loading["unexpected_keys"] and not loading["missing_keys"]


@pytest.mark.parametrize("algorithm", [ACTOR_CRITIC, SEPARATE], ids=["shared", "separate"])
def test_regression_learns_what_the_history_tells(model: str, algorithm: AlgorithmConfig) -> None:
    """The return is 1 if the row's first token is even: visible in every later hidden state, different from row to row."""
    whole = value_batch()
    target_BT = (whole.token_ids_BT[:, :1] % 2 == 0) * whole.mask_BT.double()
    parts = vars(whole) | {"credit_BT": torch.zeros_like(whole.credit_BT), "value_target_BT": target_BT}
    one = Learner(model, LearnerConfig(lr=3e-3), algorithm, total_steps=60)
    losses = [one.train_step([type(whole)(**parts)])["value/loss"].value for _ in range(60)]
    judged = one.judge(whole.token_ids_BT.tolist(), whole.mask_BT.int().tolist())
    one.close()
    assert losses[-1] < 0.05 * losses[0]
    for number, target_T in enumerate(target_BT):
        assert judged[number].values_T == pytest.approx(target_T[whole.mask_BT[number]].numpy(), abs=0.35)


def test_a_kl_in_the_reward_is_judged_by_the_reference_and_is_no_weight(model: str) -> None:
    algorithm = AlgorithmConfig(method="reinforce", kl_coef=0.5, kl_in="reward", kl_estimator="k1")
    one = value_learner(model, 0, algorithm)
    for _ in range(2):
        one.train_step(split([8], 0, 1))
    judged = one.judge(batch().token_ids_BT.tolist(), batch().mask_BT.int().tolist())
    with torch.no_grad():
        start_BT = torch.nn.functional.pad(naive_logp(AutoModelForCausalLM.from_pretrained(model), batch().token_ids_BT), (1, 0))
    for number, reference in judged.items():
        assert reference.values_T is None
        assert reference.ref_logp_T == pytest.approx(start_BT[number][batch().mask_BT[number]].numpy(), abs=1e-5)
    after = {name: weight.clone() for name, weight in one.named_weights()}
    one.close()
    plain = value_learner(model, 0, REINFORCE)
    for _ in range(2):
        plain.train_step(split([8], 0, 1))
    assert all(torch.equal(weight, after[name]) for name, weight in plain.named_weights()), "the penalty is in the credit, nowhere else"
    plain.close()


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("algorithm", [ACTOR_CRITIC, SEPARATE], ids=["shared", "separate"])
def test_a_value_rests_in_a_phase_that_learns_none(model: str, algorithm: AlgorithmConfig, stage: int) -> None:
    config = LearnerConfig(zero_stage=stage, warmup_steps=0)
    weights = {}
    for built_with in (algorithm, REINFORCE):
        one = Learner(model, config, built_with, total_steps=1)
        one.begin(AlgorithmConfig(method="sft"), config, 2)
        for part in (batch(), rows(batch(), 0, 4)):
            one.train_step([part])
        weights[built_with.method] = {name: weight.clone() for name, weight in one.named_weights()}
        if built_with is algorithm:
            one.begin(algorithm, config, 1)
            assert one.train_step([value_batch()])["value/loss"].value > 0
        else:
            with pytest.raises(InputError, match=f"learns a {algorithm.value} value, but the learner was built with none"):
                one.begin(algorithm, config, 1)
        one.close()
    for name, weight in weights["actor_critic"].items():
        torch.testing.assert_close(weight, weights["reinforce"][name], rtol=1e-5, atol=1e-6)
