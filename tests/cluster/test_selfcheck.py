"""A self-check sees every wrong scale and no rounding; its cases are the same rows in other places."""

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cluster.checks.selfcheck import Batch, check_batch, judge_step
from cluster.checks.selfcheck_cases import Case, Shares, cases, shuffled
from cluster.checks.selfcheck_step import Outcome, Setup, largest_difference, opened, plain, take
from cluster.config import RunConfig
from cluster.load_config import load_config
from cluster.show.live import LiveView
from envs.errors import InputError
from learner.batch import optimizer_steps
from learner.credit import initial_baseline
from learner.plan import resolve
from learner.types import OptimizerStep
from rollout.types import Group
from tests.cluster.episodes import trajectory
from tests.cluster.test_preflight import cut
from tests.learner.engine_cases import write_model


def groups(*, alike: bool = False) -> list[Group]:
    """Two groups of four episodes of different lengths; if `alike`, all of them fail."""

    def member(number: int, group: int) -> object:
        episode = trajectory(group=group, member=number, reward=float(number == 0 and not alike))
        return cut(episode, 1) if number == 3 else episode

    return [Group(trajectories=tuple(member(number, group) for number in range(4))) for group in range(2)]  # type: ignore[misc]


def config(*overrides: str) -> RunConfig:
    shape = ("rollout.groups_per_step=2", "rollout.group_size=4", "learner.minibatches=1", "learner.micro_batch_tokens=27")
    return load_config("number-search-tiny", [*shape, "algorithm.kl_coef=null", "cluster.learner_threads=1", *overrides])


def cut_step(ranks: int, budget: int) -> OptimizerStep:
    plan = resolve(config().algorithm)
    packing = {"ranks": ranks, "micro_batch_tokens": budget, "generation_limit": 8, "current_version": 3}
    return optimizer_steps(groups(), plan, baseline_state=initial_baseline(plan), **packing)[0][0]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_model(tmp_path_factory.mktemp("models") / "small", tied=True))


def rows(shares: Shares) -> list[tuple[object, ...]]:
    """Token ids, credit and 1/Z of every row, without padding, in one order."""
    found = []
    for part in (part for share in shares for part in share):
        for row, mask_T in enumerate(part.mask_BT):
            stop = int(mask_T.nonzero().max()) + 1
            columns = (part.token_ids_BT, part.mask_BT, part.credit_BT, part.inverse_z_BT, part.logp_old_BT, part.on_policy_BT)
            found.append(tuple(tuple(values_BT[row, :stop].tolist()) for values_BT in columns))
    return sorted(found)


def test_every_case_has_the_same_rows_and_no_two_are_the_same() -> None:
    found = cases(cut_step, budget=27, ranks=[2])
    assert {case.ranks for case in found} == {1, 2} and len(found) >= 6
    for case in found:
        kept = [row for row in rows(case.shares) if any(row[3])]  # the others fill up a rank, with weight 0
        assert kept == rows(found[0].shares), case.name
        assert len({len(share) for share in case.shares}) == 1, "ranks with other numbers of collectives would hang"
    assert len({str(case.shares) for case in found}) == len(found)


def test_shuffling_moves_rows_and_loses_none() -> None:
    shares = cut_step(2, 27).micro_batches
    once = shuffled(shares, seed=1)
    assert rows(once) == rows(shares) and str(once) != str(shares)
    assert [[len(part.mask_BT) for part in share] for share in once] == [[len(part.mask_BT) for part in share] for share in shares]


def test_a_whole_check_passes_on_one_and_two_ranks(policy: Path, tmp_path: Path) -> None:
    batch = Batch(policy=policy, groups=groups(), judged=None, version=3)
    found = check_batch(config(), batch, LiveView(0, title="test", console=Console(file=io.StringIO())), tmp_path)
    assert all(step.passed for step in found.steps), found
    assert {step.ranks for step in found.steps} == {1, 2} and found.left_out is None
    assert max(step.difference for step in found.steps) < 1e-5 and found.largest_update > 0
    # The invented log-probs are not the model's, and that is seen too.
    assert found.logprobs.tokens == 30 and found.logprobs.max_gap > 0.1 and not found.logprobs.passed and not found.passed
    assert found.logprobs.min_ratio < found.logprobs.max_ratio


def test_a_batch_without_a_gradient_proves_nothing(policy: Path, tmp_path: Path) -> None:
    batch = Batch(policy=policy, groups=groups(alike=True), judged=None, version=3)
    with pytest.raises(InputError, match="not one of its 8 episodes has credit"):
        check_batch(config(), batch, LiveView(0, title="test", console=Console(file=io.StringIO())), tmp_path)


def test_a_step_of_another_scale_or_without_a_row_is_seen(policy: Path) -> None:
    setup = Setup(policy=str(policy), algorithm=config().algorithm, learner=plain(config().learner), temperature=1.0, timeout_s=60)
    right = Case(name="right", shares=cut_step(1, 27).micro_batches)
    (parts,) = right.shares
    halved = replace(parts[0], inverse_z_BT=parts[0].inverse_z_BT / 2)
    wrong = {"twice": (*parts, *parts), "half of one": (halved, *parts[1:]), "one less": parts[1:]}
    with opened(setup) as learner:
        before = {name: weight.clone() for name, weight in learner.named_weights()}
        norm = float(learner.train_step(parts)["learner/grad_norm"].value)
        reference = {name: weight.clone() for name, weight in learner.named_weights()}
    update = largest_difference(before.items(), reference)
    for name, share in wrong.items():
        case = Case(name=name, shares=(share,))
        with opened(setup) as learner:
            outcome = take(learner, case, reference)
        assert not judge_step(case, outcome, update, norm, tolerance=0.05).passed, name
        if name == "twice":
            assert outcome.largest == pytest.approx(update, rel=1e-4), "an update that is too large by itself"


def test_not_a_number_never_passes() -> None:
    case = Case(name="any", shares=cut_step(1, 27).micro_batches)
    assert judge_step(case, Outcome(largest=1e-6, grad_norm=1.0), 1.0, 1.0, 1e-4).passed
    assert not judge_step(case, Outcome(largest=math.nan, grad_norm=1.0), 1.0, 1.0, 1e-4).passed
    assert not judge_step(case, Outcome(largest=0.0, grad_norm=1.1), 1.0, 1.0, 1e-4).passed
    assert math.isnan(largest_difference([("a", torch.tensor([1.0, math.nan]))], {"a": torch.zeros(2)}))
