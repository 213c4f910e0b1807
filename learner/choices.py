"""The choices that a method is made of, and what each does to the expected gradient."""

from typing import Literal

Returns = Literal["one", "passes", "success", "reward", "to_go", "gae"]
Baseline = Literal["none", "constant", "moving_average", "value", "group_mean", "leave_one_out", "alive"]
Scale = Literal["none", "std"]
Normaliser = Literal["constant", "token", "own_length", "group", "kept"]
Drift = Literal["none", "ppo_clip", "tis", "masked", "sequence", "cispo"]
KlEstimator = Literal["k1", "k2", "k3"]
Data = Literal["batch", "grown", "newest"]
"""What an optimiser step learns from: the batch that was just sampled, or, in rounds (`learner.grow`), the samples that pass the
filter, of all rounds (grown) or of the newest round from the base policy on (newest)."""

GROUP_BASELINES: tuple[Baseline, ...] = ("group_mean", "leave_one_out", "alive")
"""Baselines made of the siblings' rewards: a group needs two members at least."""

FILTERS: tuple[Returns, ...] = ("passes", "success")
"""Returns of 1 or 0: an episode is imitated or left out."""

IMITATION: tuple[Returns, ...] = ("one", *FILTERS)
"""Returns that treat the samples as data to imitate, whoever sampled them: no drift corrects them."""

BIASES: dict[str, str] = {
    "group_mean": "the mean contains the sample itself: the gradient is (1 - 1/G) of the true one",
    "std": "dividing by the group's std weights a task by its difficulty: groups near success 0 or 1 count more",
    "own_length": "1/own length makes a token of a short episode count more than one of a long episode",
    "token": "Z depends on the sampled lengths, so that long samples shrink the step that they are part of",
    "kept": "Z counts what was kept, so that a success weighs more in a batch where few succeed, and a long one shrinks its step",
    "one": "the reward is never looked at: it imitates its data, good or bad",
    "passes": "the reward is only compared with a threshold: how far above or below it lies is lost",
    "gae": "with gae_lambda below 1 the return leans on V, which is wrong as long as it learns; with gamma below 1 it is another return",
    "whiten": "whitening subtracts a mean that contains the sample itself, and divides by a std that depends on the batch",
    "ppo_clip": "clipped tokens have no gradient: exact while sampled by the current weights, conservative after that",
    "tis": "ratios above the cap count as the cap: exact while sampled by the current weights, leaning to the older policy after that",
    "masked": "tokens out of bounds have no gradient: exact while sampled by the current weights, blind to large changes after",
    "sequence": "one ratio for the whole episode, its geometric mean: exact while sampled by the current weights, smoothed after that",
    "cispo": "the ratio counts within its bounds only: exact while sampled by the current weights, leaning to the older policy after that",
}
"""What each choice does to the expected gradient; a choice that is not here leaves it equal to grad J, up to a constant."""


def biases(*choices: str) -> tuple[str, ...]:
    """The sentences of `BIASES` that apply to these choices."""
    return tuple(BIASES[choice] for choice in choices if choice in BIASES)
