"""The lab's exact numbers: the lecture's bandit, the proven multiples, and what a baseline does to the variance."""

import json
import math
from pathlib import Path

import pytest

from envs.errors import InputError
from learner.enumerate import exact_gradient, expected_return
from learner.lab import TOYS, bandit, bandit_gradients, bias_row, make_toy, variance_rows
from learner.methods import METHODS

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "lecture.json").read_text())["bandit"]
EXACT = [name for name, row in METHODS.items() if not row.biased_by]


def test_bandit_is_the_lecture() -> None:
    found = bandit((0.0, 0.5))
    assert {arm.name: arm.slope for arm in found.arms} == pytest.approx(GOLDEN["slope"], abs=1e-12)
    assert {arm.name: arm.reward for arm in found.arms} == GOLDEN["reward"]
    assert found.arms[0].probability == GOLDEN["p_A"]
    assert found.true_gradient == pytest.approx(GOLDEN["true_gradient"], abs=1e-12)
    for b in (0.0, 0.5):
        name = f"b={b:g}"
        assert {arm.name: arm.samples[b] for arm in found.arms} == pytest.approx(GOLDEN["samples"][name], abs=1e-12)
        assert found.mean[b] == pytest.approx(GOLDEN["true_gradient"], abs=1e-12)
        assert found.std[b] == pytest.approx(GOLDEN["std_of_samples"][name], abs=5e-6)


@pytest.mark.parametrize("b", [-1.0, 0.0, 0.75, 3.0])
def test_every_baseline_has_the_same_expectation_and_n_pulls_have_a_variance_of_one_nth(b: float) -> None:
    """g = (R - b) slope, so g_A - g_B = .75 (1 - b) - .25 b = .75 - b, and the variance of one pull is p (1 - p) (.75 - b)^2."""
    found = bandit((b,))
    assert found.mean[b] == pytest.approx(found.true_gradient, abs=1e-12)
    assert found.std[b] == pytest.approx(math.sqrt(0.1875) * abs(0.75 - b), abs=1e-12)
    pairs = bandit_gradients(b, episodes=16)
    assert math.fsum(p for p, _ in pairs) == pytest.approx(1, abs=1e-12)
    assert math.fsum(p * g for p, g in pairs) == pytest.approx(0.1875, abs=1e-12)
    variance = math.fsum(p * (g - 0.1875) ** 2 for p, g in pairs)
    assert variance == pytest.approx(0.1875 * (0.75 - b) ** 2 / 16, abs=1e-12)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("success", [0.02, 0.37, 0.98])
def test_a_toy_succeeds_as_often_as_it_is_told(name: str, success: float) -> None:
    toy = make_toy(name, success)
    assert float(expected_return(toy, toy.logits_SV)) == pytest.approx(success, abs=1e-12)
    assert len({len(path) for path in toy.paths()}) == (1 if name == "fixed" else 3)
    assert float(exact_gradient(toy).norm()) > 1e-3


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("success", [0.1, 0.5])
def test_a_row_without_a_bias_has_multiple_and_cosine_one(method: str, toy: str, success: float) -> None:
    row = bias_row(method, toy, group_size=3, success_rate=success)
    assert row.multiple == pytest.approx(1, abs=1e-10)
    assert row.cosine == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("toy", TOYS)
def test_the_group_mean_is_short_by_one_over_g(toy: str, size: int) -> None:
    row = bias_row("dr_grpo", toy, group_size=size, success_rate=0.3)
    assert row.multiple == pytest.approx(1 - 1 / size, abs=1e-10)
    assert row.cosine == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize(("success", "multiple"), [(0.5, 1.8557), (0.1, 2.3277), (0.9, 2.3277), (0.02, 2.5732), (0.98, 2.5732)])
@pytest.mark.parametrize("method", ["grpo", "grpo_simple"])
def test_the_difficulty_bias_of_the_std(method: str, success: float, multiple: float) -> None:
    assert bias_row(method, "fixed", group_size=8, success_rate=success).multiple == pytest.approx(multiple, abs=5e-5)


def test_one_over_own_length_turns_the_gradient_and_imitating_own_samples_has_none() -> None:
    assert bias_row("grpo", "with_end", group_size=8, success_rate=0.5).cosine < 0.99
    assert bias_row("grpo_simple", "with_end", group_size=8, success_rate=0.5).cosine == pytest.approx(1, abs=1e-10)
    own = bias_row("self_distill", "fixed", group_size=8, success_rate=0.5)
    assert (own.multiple, own.cosine) == (0.0, None)
    assert own.relative_variance > 0.1


def test_the_relative_variance_of_reinforce_is_that_of_one_episode_over_g() -> None:
    one, eight = (bias_row("reinforce", "with_end", group_size=size, success_rate=0.3).relative_variance for size in (1, 8))
    assert eight == pytest.approx(one / 8, rel=1e-10)


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("success", [0.02, 0.5, 0.9])
def test_baselines_leave_the_direction_and_change_the_noise(toy: str, success: float) -> None:
    rows = {row.baseline: row for row in variance_rows(toy, group_size=4, success_rate=success)}
    assert list(rows) == ["none", "constant 0.5", "moving average", "group mean", "leave one out", "value"]
    for name, row in rows.items():
        assert row.multiple == pytest.approx(0.75 if name == "group mean" else 1, abs=1e-10)
        assert row.relative_variance == pytest.approx(row.noise_to_signal * row.multiple**2, rel=1e-10)
    assert rows["group mean"].noise_to_signal == pytest.approx(rows["leave one out"].noise_to_signal, rel=1e-9)
    assert rows["moving average"].noise_to_signal < rows["leave one out"].noise_to_signal, "an average of others is noise itself"
    assert rows["moving average"].noise_to_signal < rows["none"].noise_to_signal
    if toy == "fixed":  # one state alone: its value is the success rate
        assert rows["value"].noise_to_signal == pytest.approx(rows["moving average"].noise_to_signal, rel=1e-9)
    else:
        assert rows["value"].noise_to_signal < 0.99 * rows["moving average"].noise_to_signal


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_toy("fixd", 0.5), "did you mean 'fixed'"),
        (lambda: make_toy("fixed", 0.0), "above 0 and below 1"),
        (lambda: make_toy("fixed", math.nan), "above 0 and below 1"),
        (lambda: bias_row("gropo", "fixed", group_size=2, success_rate=0.5), "did you mean 'grpo'"),
        (lambda: bias_row("grpo", "fixed", group_size=1, success_rate=0.5), "group_size is 1"),
        (lambda: list(variance_rows("fixed", group_size=1, success_rate=0.5)), "expected 2 or more"),
        (lambda: bandit((math.inf,)), "finite number"),
    ],
)
def test_bad_input_is_refused_with_the_way_out(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
