"""Combinations without a meaning are refused with the reason and the way out; what is printed is what runs."""

import pytest

from envs.errors import InputError
from learner.choices import BIASES
from learner.config import AlgorithmConfig
from learner.explain import describe, formula
from learner.methods import METHODS
from learner.plan import check, resolve
from tests.learner.builders import plan_of


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"method": "dr_grop"}, "did you mean 'dr_grpo'"),
        ({"method": "reinforce", "baseline": "group_mean"}, "baseline group_mean is not one of none, constant, moving_average"),
        ({"method": "reinforce_to_go", "baseline": "group_mean"}, "is biased, because .* use method alive_loo"),
        ({"method": "grpo", "baseline": "none"}, "baseline none is not one of group_mean"),
        ({"method": "grpo", "kl_estimator": "k1"}, "k1 has a gradient whose mean is 0"),
        ({"method": "sft", "kl_coef": 0.1}, "needs tokens that the policy sampled"),
        ({"method": "sft", "drift": "ppo_clip"}, "imitation corrects for none"),
        ({"method": "rest_em", "drift": "tis"}, "imitation corrects for none"),
        ({"method": "rest", "kl_coef": 0.1}, "needs tokens that the policy sampled by itself, all of them"),
        ({"method": "alive_loo", "kl_coef": 0.1, "kl_in": "reward"}, "alive compares whole turns"),
        ({"method": "ppo", "baseline": "none"}, "baseline none is not one of value"),
        ({"method": "reinforce", "normaliser": "kept"}, "this row has no filter"),
        ({"method": "rloo", "whiten": True}, "whiten is for rows with a learned value"),
        ({"method": "actor_critic", "gamma": 0.9}, "this row's return is to_go"),
        ({"method": "dr_grpo", "drift": "tis", "dual_clip": 3.0}, "the drift is tis"),
        ({"method": "alive_loo", "count_dead_groups": False}, "with baseline alive these have credit"),
        ({"method": "reinforce", "count_dead_groups": False}, "with baseline none these have credit"),
    ],
)
def test_combinations_without_a_meaning_are_refused(config: dict, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        resolve(AlgorithmConfig.model_validate(config))


def test_k1_is_harmless_where_no_kl_is_asked_for() -> None:
    assert plan_of("grpo", kl_estimator="k1", kl_coef=0.0).kl_coef == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_group_of_one_fits_exactly_the_methods_without_a_group(method: str) -> None:
    config = AlgorithmConfig(method=method)
    if METHODS[method].needs_group:
        with pytest.raises(InputError, match=r"group_size is 1, .* set group_size to 2 or more"):
            check(config, group_size=1)
    else:
        check(config, group_size=1)


@pytest.mark.parametrize("stale", [{"max_lag": 1}, {"steps_per_batch": 4}])
def test_stale_samples_without_a_correction_must_be_asked_for(stale: dict) -> None:
    with pytest.raises(InputError, match=r"corrects for none; set drift to ppo_clip, or write drift: none"):
        check(AlgorithmConfig(method="rloo"), group_size=4, **stale)
    assert check(AlgorithmConfig(method="rloo", drift="none"), group_size=4, **stale).drift == "none"
    assert check(AlgorithmConfig(method="rloo", drift="ppo_clip"), group_size=4, **stale).drift == "ppo_clip"
    assert check(AlgorithmConfig(method="dr_grpo"), group_size=4, **stale).drift == "ppo_clip"
    for imitation in ("sft", "rest_em", "expert_iteration"):
        assert check(AlgorithmConfig(method=imitation), group_size=1, **stale).drift == "none"
    assert check(AlgorithmConfig(method="ppo"), group_size=1, **stale).drift == "ppo_clip"


def test_formula_of_grpo_in_full() -> None:
    text = formula(plan_of("grpo", clip_high=0.28, std="sample", count_dead_groups=False, entropy_coef=0.01))
    for part in (
        "w_it      = (credit_it * drift_it + kl_it) / Z",
        "credit_it = (R_i - mean_j R_j) / std_j R_j",
        "divided by the sample std",
        "credit > 0 and the ratio > 1.28, or credit < 0 and the ratio < 0.8",
        "kl_it     = 0.04 * (pi_ref / pi - 1)",
        "Z         = groups * G * |y_i|",
        "groups with equal rewards are not counted",
        "bonus     = 0.01 *",
        "1/own length",
    ):
        assert part in text, f"{part!r} is not in:\n{text}"


def test_formula_speaks_of_overrides_and_not_of_the_row() -> None:
    plain = formula(plan_of("dr_grpo", drift="none", normaliser="token", baseline="leave_one_out"))
    assert "drift_it" not in plain and "kl_it" not in plain and "std" not in plain
    assert "Z         = sum_i |y_i|" in plain
    assert "mean_(j != i) R_j" in plain
    assert "C = 32" in formula(plan_of("dr_grpo", generation_limit=32))


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"method": "ppo", "gae_lambda": 0.9, "whiten": True}, ["whiten(G_it - V(h_it))", "lambda 0.9", "(V(h_it) - G_it)^2", "whitening"]),
        ({"method": "actor_critic", "value": "separate"}, ["R_it - V(h_it)", "(V(h_it) - R_it)^2 / 2 / Z", "the loss of V, separate"]),
        ({"method": "rest", "filter_threshold": 0.5}, ["credit_it = 1[R_i >= 0.5]", "Z         = sum_kept |y_i|"]),
        ({"method": "rest_em"}, ["credit_it = 1[success_i]", "data      = newest", "starts again from the one before RL"]),
        ({"method": "rloo", "kl_coef": 0.2, "kl_in": "reward", "kl_estimator": "k1"}, ["reward    = r_it - 0.2 * k1_it"]),
        ({"method": "dr_grpo", "dual_clip": 3.0}, ["the ratio < 0.8 or > 3"]),
        ({"method": "rloo", "drift": "tis", "tis_cap": 1.5}, ["drift_it  = min(pi / pi_old, 1.5)"]),
        ({"method": "rloo", "drift": "masked", "mask_high": 4}, ["below 0.5 or above 4"]),
        ({"method": "rloo", "drift": "sequence"}, ["drift_it  = exp(mean_t log(pi / pi_old))"]),
        ({"method": "rloo", "drift": "cispo", "clip_high": 0.3}, ["drift_it  = clip(pi / pi_old, 0.8, 1.3)"]),
    ],
)
def test_formula_has_the_numbers_that_run(config: dict, parts: list[str]) -> None:
    text = formula(resolve(AlgorithmConfig.model_validate(config)))
    for part in parts:
        assert part in text, f"{part!r} is not in:\n{text}"


@pytest.mark.parametrize("method", METHODS)
def test_every_row_explains_itself_in_plain_ascii(method: str) -> None:
    assert METHODS[method].name == method
    assert METHODS[method].baseline in METHODS[method].baselines
    assert (formula(plan_of(method)) + describe(METHODS[method])).isascii()


@pytest.mark.parametrize("config", [{"method": "rloo"}, {"method": "grpo"}, {"method": "grpo", "normaliser": "token"}])
def test_biases_are_those_of_what_runs_and_said_once(config: dict) -> None:
    plan = resolve(AlgorithmConfig.model_validate(config))
    text = f"{describe(plan.method)}\n{formula(plan)}"
    said = [line.partition(": ")[2] for line in text.splitlines() if line.lower().startswith("biased by")]
    assert said == list(plan.biased_by or ("nothing: the expected gradient of the credit is grad J",))
    assert all(text.count(reason) == 1 for reason in BIASES.values() if reason in plan.biased_by)
    assert not any(reason in text for reason in BIASES.values() if reason not in plan.biased_by)
