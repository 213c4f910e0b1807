"""Small exact experiments about the method table: what `pickaxe lab` prints. Nothing in here is sampled.

Every gradient comes from the credit, normalise and loss code that trains (`learner.enumerate`). Two toys, both with a reward
of 1 or 0 and any success rate p:

    fixed      one action of three, of which two succeed: all episodes have one token, so every Z divides by the same length
    with_end   go on or stop, three turns at most: stopping at the second turn and never stopping succeed; 1, 2 or 3 tokens

Simplifications: one group is one optimiser step, it was sampled by the current weights, and C = 1.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from envs.errors import InputError, did_you_mean
from learner.config import AlgorithmConfig
from learner.enumerate import Estimate, Toy, exact_gradient, expected_gradient, sampled_gradients
from learner.methods import METHODS
from learner.plan import Plan, check, resolve

P_A = 0.25
"""Probability of arm A of the bandit, sigmoid(-1.1) rounded; A pays 1, B pays 0."""
_NOTHING = 1e-9  # of |grad J|: an expected gradient below this is rounding, and has no direction


def _fixed(success: float) -> Toy:
    probabilities = torch.tensor([[0.3 * success, 0.7 * success, 1 - success]], dtype=torch.float64)
    return Toy(name="fixed", logits_SV=probabilities.log(), turns=1, reward=lambda past: float(past[-1] < 2))


def _with_end(success: float) -> Toy:
    """P(go on) = sqrt(p) at first; then p / P(go on) = 1 - (1 - stop)(1 - go on), cut in unequal parts so that states differ."""
    first = math.sqrt(success)
    stop = 1 - (1 - first) ** 0.4
    last = 1 - (1 - first) ** 0.6
    go_on = torch.tensor([first, 1 - stop, last], dtype=torch.float64)
    logits_SV = torch.stack([go_on, 1 - go_on], -1).log()
    return Toy(name="with_end", logits_SV=logits_SV, turns=3, end_token=1, reward=lambda past: float(past in {(0, 1), (0, 0, 0)}))


TOYS: dict[str, Callable[[float], Toy]] = {"fixed": _fixed, "with_end": _with_end}


def make_toy(name: str, success_rate: float) -> Toy:
    """The toy of this name whose policy succeeds with this probability. Raises `InputError` for an unknown name or a rate that is
    not strictly between 0 and 1 (a policy that always or never succeeds has no gradient)."""
    if name not in TOYS:
        raise InputError(f"unknown toy {name!r}; {did_you_mean(name, list(TOYS))}")
    if not 0 < success_rate < 1:
        raise InputError(f"the success rate is {success_rate:g}; expected one above 0 and below 1, because at the ends grad J is 0")
    return TOYS[name](success_rate)


@dataclass(frozen=True, kw_only=True)
class BiasRow:
    """E[g] of one method against grad J.

    `multiple` is E[g] . grad J / |grad J|^2, `cosine` that of their angle (None if E[g] is 0), and `relative_variance` is
    E|g - E g|^2 / |grad J|^2, for the gradient g of one group. Unbiased means multiple 1 and cosine 1.
    """

    method: str
    toy: str
    group_size: int
    success_rate: float
    multiple: float
    cosine: float | None
    relative_variance: float


def bias_row(method: str, toy_name: str, *, group_size: int, success_rate: float) -> BiasRow:
    """Measure one method on one toy, exactly. Raises `InputError` for names, sizes and rates that do not exist or do not fit."""
    toy = make_toy(toy_name, success_rate)
    plan = check(AlgorithmConfig(method=method), group_size=group_size)
    estimate, gradient_P = expected_gradient(toy, plan, group_size=group_size), exact_gradient(toy)
    nothing = float(estimate.mean_P.norm()) < _NOTHING * float(gradient_P.norm())
    return BiasRow(
        method=method,
        toy=toy_name,
        group_size=group_size,
        success_rate=success_rate,
        multiple=0.0 if nothing else estimate.multiple_of(gradient_P)[0],
        cosine=None if nothing else estimate.cosine(gradient_P),
        relative_variance=estimate.variance / float(gradient_P @ gradient_P),
    )


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm of the bandit: its probability, the slope of its log-prob, its reward and its sample gradient for each baseline."""

    name: str
    probability: float
    slope: float
    reward: float
    samples: Mapping[float, float]


@dataclass(frozen=True, kw_only=True)
class Bandit:
    """The two-armed bandit with one parameter theta, P(A) = sigmoid(theta): a sample gradient is (R - b) * d log pi / d theta.

    `mean` and `std` are over the arms, for each baseline b; `true_gradient` is that of J, p (1 - p). Source: Williams 1992.
    """

    arms: tuple[Arm, Arm]
    true_gradient: float
    mean: Mapping[float, float]
    std: Mapping[float, float]


def bandit(baselines: tuple[float, ...]) -> Bandit:
    """The bandit of the lecture, p = 0.25, with these constant baselines. Raises `InputError` for one that is not finite."""
    toy = _bandit_toy()
    samples = {b: bandit_gradients(b, episodes=1) for b in baselines}
    mean = {b: math.fsum(p * g for p, g in pairs) for b, pairs in samples.items()}
    std = {b: math.sqrt(math.fsum(p * (g - mean[b]) ** 2 for p, g in pairs)) for b, pairs in samples.items()}
    arms = []
    for number, name in enumerate("AB"):
        logits_SV = toy.logits_SV.clone().requires_grad_()
        (slope_SV,) = torch.autograd.grad(toy.log_probs((number,), logits_SV).sum(), logits_SV)
        arms.append(
            Arm(
                name=name,
                probability=P_A if name == "A" else 1 - P_A,
                slope=float(slope_SV[0, 0]),
                reward=toy.reward((number,)),
                samples={b: pairs[number][1] for b, pairs in samples.items()},
            )
        )
    return Bandit(arms=(arms[0], arms[1]), true_gradient=float(exact_gradient(toy)[0]), mean=mean, std=std)


def bandit_gradients(baseline: float, *, episodes: int) -> list[tuple[float, float]]:
    """(probability, value) of every gradient d J / d theta that a mean over so many pulls can give, with `reinforce` and constant b.

    For one episode: arm A, then arm B.
    """
    if not math.isfinite(baseline):
        raise InputError(f"the baseline is {baseline}; expected a finite number, such as 0.5")
    plan = resolve(AlgorithmConfig(method="reinforce", baseline="constant", baseline_constant=baseline))
    # With logits (theta, 0) the policy is sigmoid(theta), so the first parameter's gradient is the whole one.
    return [(probability, float(gradient_P[0])) for probability, gradient_P in sampled_gradients(_bandit_toy(), plan, group_size=episodes)]


def _bandit_toy() -> Toy:
    logits_SV = torch.tensor([[math.log(P_A / (1 - P_A)), 0.0]], dtype=torch.float64)
    return Toy(name="bandit", logits_SV=logits_SV, turns=1, reward=lambda past: float(past == (0,)))


@dataclass(frozen=True, kw_only=True)
class VarianceRow:
    """The noise of the gradient of one group with one baseline.

    `relative_variance` is E|g - E g|^2 / |grad J|^2. `noise_to_signal` is E|g - E g|^2 / |E g|^2: it does not change when g is
    scaled, so that the group mean, whose gradient is shorter by 1 - 1/G, is not credited with a step that is only smaller.
    """

    baseline: str
    success_rate: float
    group_size: int
    multiple: float
    relative_variance: float
    noise_to_signal: float


def baseline_plans(success_rate: float) -> dict[str, Plan]:
    """A plan for every choice of the baseline of the episode's return; scale 1 and constant C everywhere."""
    settings: dict[str, dict[str, object]] = {
        "none": {"method": "reinforce"},
        "constant 0.5": {"method": "reinforce", "baseline": "constant", "baseline_constant": 0.5},
        # After many steps at one success rate, the average of past rewards is that rate.
        "moving average": {"method": "reinforce", "baseline": "moving_average", "baseline_constant": success_rate},
        "group mean": {"method": "dr_grpo"},
        "leave one out": {"method": "rloo"},
        "value": {"method": "actor_critic"},
    }
    return {name: resolve(AlgorithmConfig.model_validate(values)) for name, values in settings.items() if values["method"] in METHODS}


def variance_rows(toy_name: str, *, group_size: int, success_rate: float) -> Iterator[VarianceRow]:
    """One row a baseline, exactly. The value baseline knows the true V(h_t) of the toy. Raises `InputError` as `make_toy`."""
    toy = make_toy(toy_name, success_rate)
    gradient_P = exact_gradient(toy)
    if group_size < 2:
        raise InputError(f"the group size is {group_size}; expected 2 or more: group mean and leave one out compare siblings")
    for name, plan in baseline_plans(success_rate).items():
        estimate: Estimate = expected_gradient(toy, plan, group_size=group_size)
        yield VarianceRow(
            baseline=name,
            success_rate=success_rate,
            group_size=group_size,
            multiple=estimate.multiple_of(gradient_P)[0],
            relative_variance=estimate.variance / float(gradient_P @ gradient_P),
            noise_to_signal=estimate.variance / float(estimate.mean_P @ estimate.mean_P),
        )
