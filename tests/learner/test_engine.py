"""The engine takes exactly the step that bare PyTorch takes, however rows are cut over micro-batches, ranks and ZeRO stages."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.errors import InputError
from envs.metrics import reduce_metrics
from learner.config import AlgorithmConfig, LearnerConfig
from learner.learner import Learner
from learner.optimiser import learning_rate
from tests.learner.engine_cases import (
    REINFORCE,
    batch,
    cases,
    naive_logp,
    reference_step,
    rows,
    run_rank,
    run_rank_then_fall_silent,
    sgd,
    split,
    write_model,
)
from tests.learner.test_value_model import check_value_steps


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    folder = tmp_path_factory.mktemp("models")
    return {tied: write_model(folder / f"tied{tied}", tied) for tied in (True, False)}


def learner(model: str, config: LearnerConfig, algorithm: AlgorithmConfig = REINFORCE, total_steps: int = 4) -> Learner:
    return Learner(model, config, algorithm, total_steps=total_steps)


def weights_of(one: Learner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in one.named_weights()}


@pytest.mark.parametrize("world_size", [1, 2])
def test_any_split_takes_the_reference_step(world_size: int, models: dict[bool, str], tmp_path: Path) -> None:
    if world_size == 1:
        run_rank(0, 1, models, tmp_path)
    else:
        torch.multiprocessing.spawn(run_rank_then_fall_silent, args=(2, models, tmp_path), nprocs=2)
    by_rank = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in range(world_size)]
    for name, model, _, clip, _ in cases(models, world_size):
        expected, norm, loss = reference_step(model, lr=0.5, max_norm=clip)
        for results in by_rank:
            weights, shapes, metrics, before, after, restarted, again = results[name]
            assert restarted == before != after
            assert all(torch.equal(weight, weights[key]) for key, weight in again.items()), "no trace of the first step is left"
            assert weights.keys() == expected.keys() == shapes.keys()
            for key, weight in weights.items():
                assert tuple(weight.shape) == shapes[key]
                torch.testing.assert_close(
                    weight, expected[key], rtol=1e-6, atol=1e-6 * float(expected[key].abs().max()), msg=f"{name} {key}"
                )
            assert metrics["learner/grad_norm"].value == pytest.approx(norm, rel=1e-5)
            assert clip == 0 or norm > 2 * clip
        reduced = reduce_metrics(results[name][2] for results in by_rank)
        assert reduced["learner/loss"] == pytest.approx(loss, abs=1e-5)
        assert reduced["learner/tokens"] == batch().mask_BT.sum()
        with torch.no_grad():
            probe_BT = batch().token_ids_BT[:2]
            new = AutoModelForCausalLM.from_pretrained(tmp_path / f"export {name}")
            torch.testing.assert_close(
                torch.tensor(before), naive_logp(AutoModelForCausalLM.from_pretrained(model), probe_BT), rtol=0, atol=1e-5
            )
            torch.testing.assert_close(torch.tensor(after), naive_logp(new, probe_BT), rtol=0, atol=1e-5)
    check_value_steps(models[True], [torch.load(tmp_path / f"value{rank}.pt", weights_only=False) for rank in range(world_size)])
    if world_size == 2:
        seconds, _, error = (tmp_path / "silent_peer.txt").read_text().partition(" ")
        assert error and 2 < float(seconds) < 30, "a peer that stays away is an error at the deadline"


@pytest.mark.parametrize("stage", range(4))
def test_resume_goes_on_bit_for_bit(stage: int, models: dict[bool, str], tmp_path: Path) -> None:
    config = LearnerConfig(zero_stage=stage, warmup_steps=2, schedule="linear")
    kl = AlgorithmConfig(method="grpo")
    straight = learner(models[True], config, kl)
    straight.train_step(split([8], 0, 1))
    straight.train_step(split([8], 0, 1))
    straight.save(tmp_path)
    straight.train_step(split([8], 0, 1))
    expected = weights_of(straight)
    straight.close()

    resumed = learner(models[True], config, kl)
    resumed.load(tmp_path)
    resumed.train_step(split([8], 0, 1))
    assert all(torch.equal(weight, expected[name]) for name, weight in resumed.named_weights())
    resumed.close()


@pytest.mark.parametrize("stage", range(4))
def test_a_new_phase_is_a_fresh_start_from_the_same_weights(stage: int, models: dict[bool, str], tmp_path: Path) -> None:
    config = LearnerConfig(zero_stage=stage, warmup_steps=2, schedule="linear")
    kl = AlgorithmConfig(method="grpo", kl_coef=1.0)
    second = learner(models[True], config)
    second.train_step(split([8], 0, 1))
    second.export(tmp_path / "cold_started")
    second.begin(kl, config, total_steps=4)
    in_second = [second.train_step(split([8], 0, 1)) for _ in range(3)]
    expected = weights_of(second)
    second.close()

    fresh = learner(str(tmp_path / "cold_started"), config, kl)
    in_fresh = [fresh.train_step(split([8], 0, 1)) for _ in range(3)]
    assert in_second == in_fresh
    assert all(torch.equal(weight, expected[name]) for name, weight in fresh.named_weights())
    assert in_fresh[0]["learner/kl_ref_nats"].value == pytest.approx(0, abs=1e-9)
    assert in_fresh[2]["learner/kl_ref_nats"].value > 1e-6
    with pytest.raises(InputError, match=r"cannot change learner\.zero_stage"):
        fresh.begin(kl, config.model_copy(update={"zero_stage": (stage + 1) % 4}), total_steps=4)
    fresh.close()


@pytest.mark.parametrize(("stage", "dtype"), [*((stage, "float32") for stage in range(4)), (1, "bfloat16"), (3, "bfloat16")])
def test_a_phase_from_the_base_is_the_same_phase_again(stage: int, dtype: str, models: dict[bool, str], tmp_path: Path) -> None:
    config = LearnerConfig.model_validate({"zero_stage": stage, "dtype": dtype, "warmup_steps": 0})
    one = learner(models[True], config)
    one.train_step(split([8], 0, 1))
    phases = []
    for start in ("mark", "base"):
        one.begin(REINFORCE, config, 4, start)
        metrics = [one.train_step(split([8], 0, 1)) for _ in range(3)]
        phases.append((metrics, weights_of(one)))
    (metrics, weights), (metrics_again, weights_again) = phases
    assert metrics == metrics_again
    assert all(torch.equal(weight, weights[name]) for name, weight in weights_again.items())
    one.save(tmp_path)
    one.close()

    other = learner(models[True], config)
    other.load(tmp_path)
    other.begin(REINFORCE, config, 4, "base")
    assert [other.train_step(split([8], 0, 1)) for _ in range(3)] == metrics_again
    other.close()


def test_an_empty_micro_batch_contributes_exactly_nothing(models: dict[bool, str]) -> None:
    results = []
    for parts in ([batch()], [rows(batch(), 0, 0), batch(), rows(batch(), 0, 0)]):
        one = learner(models[True], sgd(0))
        metrics = one.train_step(parts)
        results.append((weights_of(one), metrics))
        one.close()
    (plain, plain_metrics), (padded, padded_metrics) = results
    assert all(torch.equal(weight, plain[name]) for name, weight in padded.items())
    assert {name: metric.value for name, metric in plain_metrics.items()} == {name: metric.value for name, metric in padded_metrics.items()}


def test_the_gap_is_the_largest_difference_of_an_on_policy_token(models: dict[bool, str]) -> None:
    whole = batch()
    with torch.no_grad():
        logp_BT = torch.nn.functional.pad(naive_logp(AutoModelForCausalLM.from_pretrained(models[True]), whole.token_ids_BT), (1, 0))
    logp_BT[6, 5:] -= 0.25
    logp_BT[7] += 3.0
    on_policy_BT = whole.mask_BT.clone()
    on_policy_BT[7] = False
    assert whole.mask_BT[6, 5:].any()
    for mask_BT in (on_policy_BT, torch.zeros_like(on_policy_BT)):
        one = learner(models[True], sgd(0))
        step = rows(whole, 0, len(logp_BT))
        metrics = one.train_step([type(step)(**{**vars(step), "logp_old_BT": logp_BT, "on_policy_BT": mask_BT})])
        one.close()
        assert metrics["sync/compared_tokens"].value == int(mask_BT.sum())
        if mask_BT.any():
            assert metrics["sync/sampler_learner_gap"].value == pytest.approx(0.25, abs=1e-5)
        else:
            assert "sync/sampler_learner_gap" not in metrics


def test_an_entropy_bonus_moves_weights_that_have_no_credit(models: dict[bool, str]) -> None:
    whole = batch()
    uncredited = type(whole)(**{**vars(whole), "credit_BT": torch.zeros_like(whole.credit_BT)})
    entropies = []
    config = sgd(0).model_copy(update={"lr": 0.05})
    one = learner(models[True], config, AlgorithmConfig(method="reinforce", entropy_coef=1.0))
    for _ in range(3):
        entropies.append(one.train_step([uncredited])["learner/entropy_nats"].value)
    one.close()
    assert entropies == sorted(set(entropies)), "gradient ascent on the entropy"


def test_a_linear_entropy_bonus_falls_to_nothing(models: dict[bool, str]) -> None:
    whole = batch()
    uncredited = type(whole)(**{**vars(whole), "credit_BT": torch.zeros_like(whole.credit_BT)})
    algorithm = AlgorithmConfig(method="reinforce", entropy_coef=1.0, regulariser_schedule="linear")
    one = learner(models[True], sgd(0).model_copy(update={"lr": 1e-6}), algorithm, total_steps=4)
    norms = [float(one.train_step([uncredited])["learner/grad_norm"].value) for _ in range(5)]
    one.close()
    assert [norm / norms[0] for norm in norms] == pytest.approx([1, 0.75, 0.5, 0.25, 0], rel=0.02)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_trains_with_float32_master_weights(stage: int, models: dict[bool, str], capsys: pytest.CaptureFixture[str]) -> None:
    # Adam's steps of 1e-5 are below half the spacing of bfloat16 at most weights: added to bfloat16 weights they would be lost.
    gains = {}
    for dtype, zero in (("float32", 0), ("bfloat16", stage)):
        config = LearnerConfig.model_validate({"dtype": dtype, "zero_stage": zero, "warmup_steps": 0, "lr": 1e-5})
        one = learner(models[True], config)
        losses = [one.train_step([batch()])["learner/loss"].value for _ in range(60)]
        gains[dtype] = losses[0] - losses[-1]
        assert {str(kind) for _, kind, _ in one.weights_metadata()} == {f"torch.{dtype}"}
        one.close()
    assert gains["bfloat16"] == pytest.approx(gains["float32"], rel=0.1)
    assert capsys.readouterr().out == "", "standard output belongs to the command"


def test_bfloat16_without_zero_is_refused(models: dict[bool, str]) -> None:
    with pytest.raises(InputError, match="zero_stage=1"):
        learner(models[True], LearnerConfig(dtype="bfloat16"))


def test_gradient_checkpointing_changes_nothing(models: dict[bool, str]) -> None:
    results = []
    for recompute in (False, True):
        one = learner(models[False], sgd(3).model_copy(update={"gradient_checkpointing": recompute}))
        one.train_step(split([3, 0, 5], 0, 1))
        results.append(weights_of(one))
        one.close()
    for name, weight in results[0].items():
        torch.testing.assert_close(results[1][name], weight, rtol=1e-6, atol=1e-6)


def test_a_gradient_that_is_not_finite_stops_the_step(models: dict[bool, str]) -> None:
    whole = batch()
    broken = type(whole)(**{**vars(whole), "credit_BT": whole.credit_BT * float("inf")})
    one = learner(models[True], sgd(0))
    before = weights_of(one)
    with pytest.raises(FloatingPointError, match="norm is nan"):
        one.train_step([broken])
    assert all(torch.equal(weight, before[name]) for name, weight in one.named_weights())
    one.close()


def test_export_carries_tokenizer_and_refuses_to_overwrite(models: dict[bool, str], tmp_path: Path) -> None:
    one = learner(models[True], sgd(0))
    one.export(tmp_path / "policy")
    assert AutoTokenizer.from_pretrained(tmp_path / "policy").get_vocab() == AutoTokenizer.from_pretrained(models[True]).get_vocab()
    with pytest.raises(InputError, match="exists already"):
        one.export(tmp_path / "policy")
    one.close()
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_learning_rate_schedules() -> None:
    def rates(schedule: str, warmup: int) -> list[float]:
        config = LearnerConfig.model_validate({"lr": 0.8, "schedule": schedule, "warmup_steps": warmup})
        return [learning_rate(config, step, 6) for step in range(6)]

    assert rates("constant", 0) == [0.8] * 6
    assert rates("constant", 4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert rates("linear", 2) == pytest.approx([0.4, 0.8, 0.8, 0.6, 0.4, 0.2])
    # cos(0), cos(pi/3), cos(pi/2) ... over six steps: (1 + c) / 2 = 1, .9330, .75, .5, .25, .0670
    assert rates("cosine", 0) == pytest.approx([0.8, 0.746410, 0.6, 0.4, 0.2, 0.053590], abs=1e-6)
