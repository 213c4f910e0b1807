"""Worked numbers, each small enough to check by hand, against the code that trains."""

import json
import math
from pathlib import Path
from statistics import pstdev

import pytest
import torch

from learner.credit import credit, initial_baseline
from learner.enumerate import Toy, expected_return
from learner.loss import policy_loss, token_weights
from rollout.types import Group, Trajectory
from tests.learner.builders import micro_batches, one_turn_group, plan_of, trajectory

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "lecture.json").read_text())


def _credit_of(group: Group, method: str, **overrides: object) -> list[float]:
    """The credit of each sibling's first token."""
    plan = plan_of(method, **overrides)
    return [float(values[0]) for values in credit([group], plan, initial_baseline(plan))]


def test_expected_return_of_four_episodes() -> None:
    """J = .30 * 1 + .20 * 1 + .25 * 0 + .25 * 0 = .5."""
    golden = GOLDEN["expected_return"]
    logits = torch.tensor([golden["probabilities"]], dtype=torch.float64).log()
    toy = Toy(name="four", logits_SV=logits, turns=1, reward=lambda past: golden["rewards"][past[0]])
    assert float(expected_return(toy, logits)) == pytest.approx(golden["J"], abs=1e-12)


@pytest.mark.parametrize(("baseline", "b"), [("b=0", 0.0), ("b=0.5", 0.5)])
def test_bandit_with_and_without_a_baseline(baseline: str, b: float) -> None:
    """p(A) = sigmoid(theta) = .25: slopes +.75 and -.25; a sample is (R - b) * slope; both means are .25 * .75 = .1875."""
    golden = GOLDEN["bandit"]
    p = golden["p_A"]
    plan = plan_of("reinforce", baseline="constant", baseline_constant=b)
    samples = {}
    for arm, sign in (("A", 1), ("B", -1)):
        theta = torch.tensor([math.log(p / (1 - p))], dtype=torch.float64, requires_grad=True)
        logp_M = torch.nn.functional.logsigmoid(sign * theta)
        assert torch.autograd.grad(logp_M, theta, retain_graph=True)[0].item() == pytest.approx(golden["slope"][arm], abs=1e-12)
        (part,) = micro_batches([one_turn_group([golden["reward"][arm]], tokens=1)], plan, limit=1)
        w_M, _ = token_weights(
            plan,
            credit_M=part.credit_BT[part.mask_BT],
            inverse_z_M=part.inverse_z_BT[part.mask_BT],
            logp_old_M=logp_M.detach(),
            logp_M=logp_M,
        )
        samples[arm] = -torch.autograd.grad(policy_loss(w_M, logp_M), theta)[0].item()
    assert samples == pytest.approx(golden["samples"][baseline], abs=1e-12)
    mean = p * samples["A"] + (1 - p) * samples["B"]
    std = math.sqrt(p * (samples["A"] - mean) ** 2 + (1 - p) * (samples["B"] - mean) ** 2)
    assert mean == pytest.approx(golden["true_gradient"], abs=1e-12)
    assert std == pytest.approx(golden["std_of_samples"][baseline], abs=5e-6)


@pytest.mark.parametrize("golden", GOLDEN["groups_population_std"], ids=lambda golden: str(golden["rewards"]))
def test_standardised_groups(golden: dict) -> None:
    """(1,0,0,0): mean .25, variance (.75^2 + 3 * .25^2) / 4 = .1875, std .433; .75 / .433 = 1.732 and -.25 / .433 = -.577."""
    group = one_turn_group(golden["rewards"])
    assert sum(group.rewards) / 4 == golden["mean"]
    assert pstdev(group.rewards) == pytest.approx(golden["std"], abs=1e-7)
    for method in ("grpo_simple", "grpo"):
        assert _credit_of(group, method) == pytest.approx(golden["advantage"], abs=1e-7)


def test_dr_grpo_gives_every_token_of_an_episode_the_same_half_over_c() -> None:
    """(1,1,0,0) with lengths 1, 3, 2, 5 and C = 10: N * w is +.5/10 on every token of a success, -.5/10 on those of a failure."""
    golden, plan = GOLDEN["dr_grpo"], plan_of("dr_grpo")
    group = Group(
        trajectories=tuple(
            trajectory([[1] * n], [r], member=m) for m, (r, n) in enumerate(zip(golden["rewards"], [1, 3, 2, 5], strict=True))
        )
    )
    by_length = {
        int(mask_T.sum()): set((4 * credit_T * inverse_z_T)[mask_T].tolist())
        for part in micro_batches([group], plan, limit=10)
        for mask_T, credit_T, inverse_z_T in zip(part.mask_BT, part.credit_BT, part.inverse_z_BT, strict=True)
    }
    for coefficient, length in zip(golden["token_coefficient_times_C"], [1, 3, 2, 5], strict=True):
        assert sorted(by_length[length]) == [pytest.approx(coefficient / 10, abs=1e-15)]


@pytest.mark.parametrize("rewards", GOLDEN["degenerate"])
@pytest.mark.parametrize("method", ["rloo", "alive_loo", "grpo_simple", "grpo", "dr_grpo"])
def test_equal_rewards_have_no_signal(rewards: list[int], method: str) -> None:
    assert _credit_of(one_turn_group(rewards), method) == [0.0] * 4


END, GLUE = 200, [201, 202, 203]


def _number_search_episode(golden: dict, member: int) -> tuple[Trajectory, list[int]]:
    """The episode with one token a character, and where the policy's own tokens are: each `guess(n)` and the end token after it."""
    tokens, expected = [ord(c) for c in "Find the number in 1-16."], []
    prompt, actions, observations = [*tokens, *GLUE], [], []
    position = len(prompt)
    for guess, reply in zip(golden["guesses"], golden["replies"], strict=True):
        action = [*(ord(c) for c in f"guess({guess})"), END]
        observation = [*GLUE, *(ord(c) for c in reply), *GLUE]
        expected += range(position, position + len(action))
        position += len(action) + len(observation)
        actions.append(action)
        observations.append(observation)
    rewards = [0.0] * (len(actions) - 1) + [float(golden["reward"])]
    return trajectory(actions, rewards, member=member, prompt=prompt, observations=observations), expected


@pytest.mark.parametrize("method", ["rloo", "alive_loo", "grpo", "dr_grpo"])
def test_weights_lie_exactly_on_the_guesses_and_their_end_tokens(method: str) -> None:
    """Two episodes find 11 and two do not: every token of `guess(8)<end>` has weight, no token of prompt, glue or reply has."""
    built = [_number_search_episode(golden, member) for member, golden in enumerate(GOLDEN["trajectories_secret_11"])]
    (part,) = micro_batches([Group(trajectories=tuple(episode for episode, _ in built))], plan_of(method))
    found = {tuple(ids[: len(e.token_ids)].tolist()): row for row, ids in enumerate(part.token_ids_BT) for e, _ in built}
    for episode, expected in built:
        row = found[episode.token_ids]
        assert part.mask_BT[row].nonzero().flatten().tolist() == expected
        weight_T = part.credit_BT[row] * part.inverse_z_BT[row]
        assert weight_T.nonzero().flatten().tolist() == expected
        assert bool((weight_T[expected] > 0).all()) == bool(episode.reward)
        text = "".join(chr(token) for token in part.token_ids_BT[row, expected].tolist() if token != END)
        assert text == "".join(f"guess({guess})" for guess in GOLDEN["trajectories_secret_11"][episode.member]["guesses"])


def test_advantage_of_the_third_guess_in_number_search() -> None:
    """After 8 higher and 12 lower the secret is 9, 10 or 11; two guesses are left, the policy plays uniformly on what is possible.

    Guess 10: right in 1/3, else the reply names the secret: 1. Guess 9 or 11: right in 1/3, else two are left for one guess:
    1/3 + 2/3 * 1/2 = 2/3. So V = (1 + 2/3 + 2/3) / 3 = 7/9, A(10) = 2/9 > 0, A(11) = -1/9 < 0. The expected credit of the
    guess, with V as the baseline, must be the same.
    """
    plan = plan_of("reinforce", baseline="constant", baseline_constant=7 / 9)
    expected = dict.fromkeys((9, 10, 11), 0.0)
    for guess in expected:
        for secret in (9, 10, 11):
            left = [n for n in (9, 10, 11) if (n > guess) == (secret > guess) and n != guess]
            ways = [[1.0]] if guess == secret else [[0.0, float(second == secret)] for second in left]
            for rewards in ways:
                group = Group(trajectories=(trajectory([[guess]] * len(rewards), rewards),))
                expected[guess] += float(credit([group], plan, initial_baseline(plan))[0][0]) / 3 / len(ways)
    golden = GOLDEN["number_search_advantage_signs"]
    assert expected == pytest.approx({9: -1 / 9, 10: 2 / 9, 11: -1 / 9}, abs=1e-12)
    assert expected[golden["positive"]] > 0 > expected[golden["negative"]]
