"""Episodes are aligned token by token, end for the right reason, and a failing environment costs its own group and nothing else."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from envs.catalog import find
from envs.contract import End, EnvFault, Step, Task
from envs.errors import InputError
from envs.isolated import EnvProcess
from rollout.chat import ChatEncoder
from rollout.config import RolloutConfig
from rollout.episode import Episode
from rollout.play import EnvHost, GroupFailure, LocalHost, Policy, all_or_none, demonstrate, play, play_group, sampling_seed
from rollout.types import Departure, Group, Trajectory
from tests.envs import faulty
from tests.rollout.players import ProcessHost, Write, Writer, guesses, logp, one_after_the_other
from tests.rollout.tokenizers import tokenizer

CONFIG = RolloutConfig(max_turn_tokens=8, max_context_tokens=200)


@pytest.fixture(scope="module")
def encoder() -> ChatEncoder:
    return ChatEncoder(tokenizer())


@pytest.fixture(scope="module")
def process() -> Iterator[EnvProcess]:
    with EnvProcess(deadline_s=1.0) as process:
        yield process


def secret(number: int, guesses: int = 4) -> Task:
    data = {"numbers": 16, "guesses": guesses, "secret": number}
    return Task(id=f"secret-{number}", env="number_search", split="train", level="", seed=0, data=data)


def episode_of(task: Task, encoder: ChatEncoder, *, turn: int = 8, context: int = 200) -> Episode:
    return Episode(task=task, encoder=encoder, max_turn_tokens=turn, max_context_tokens=context, group=2, member=1, seed=7)


def played(episode: Episode, policy: Policy) -> Trajectory:
    return asyncio.run(play(episode, "attempt", policy, LocalHost(find), 0.7))


def group_of(
    task: Task, policy: Policy, host: EnvHost, encoder: ChatEncoder, *, number: int = 0, size: int = 3, config: RolloutConfig = CONFIG
) -> Group | GroupFailure:
    return asyncio.run(play_group(task, number, size=size, seed=5, config=config, encoder=encoder, policy=policy, host=host))


def test_every_sampled_token_is_in_its_place_and_nothing_else_is_marked(encoder: ChatEncoder) -> None:
    actions = [encoder.action(f"guess({number})") for number in (8, 12, 11)]
    policy = Writer(encoder.end_id, one_after_the_other(actions))
    trajectory = played(episode_of(secret(11), encoder), policy)
    prompt, *_ = (asked for asked, _ in policy.asked)
    higher, lower = encoder.observation("higher"), encoder.observation("lower")
    pieces = [(prompt, 0), (actions[0], 1), (higher, 0), (actions[1], 1), (lower, 0), (actions[2], 1)]
    assert trajectory.token_ids == tuple(token for piece, _ in pieces for token in piece)
    assert trajectory.action_mask == tuple(mark for piece, mark in pieces for _ in piece)
    assert trajectory.logp_old == tuple(logp(token) * mark for piece, mark in pieces for token in piece)
    starts = list(accumulate((len(piece) for piece, _ in pieces), initial=0))
    assert [turn.start for turn in trajectory.turns] == [starts[1], starts[3], starts[5]]
    assert [turn.observation for turn in trajectory.turns] == ["higher", "lower", "correct"]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 1.0]
    assert (trajectory.end, trajectory.reward, trajectory.group, trajectory.member, trajectory.seed) == (End.SOLVED, 1.0, 2, 1, 7)
    assert {(turn.first_version, turn.last_version) for turn in trajectory.turns} == {(3, 3)}
    # Every turn is asked with all tokens so far, the run's temperature and a seed of its own.
    assert [asked for asked, _ in policy.asked] == [trajectory.token_ids[: starts[i]] for i in (1, 3, 5)]
    assert [sampling.seed for _, sampling in policy.asked] == [sampling_seed(7, turn) for turn in range(3)]
    assert {sampling.temperature for _, sampling in policy.asked} == {0.7}


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_an_episode_has_exactly_k_turns_and_the_summary_of_its_environment(encoder: ChatEncoder, turns: int) -> None:
    policy = Writer(encoder.end_id, lambda token_ids, sampling: encoder.action("guess(3)"))
    trajectory = played(episode_of(secret(11, guesses=turns), encoder), policy)
    assert len(trajectory.turns) == len(policy.asked) == turns
    assert (trajectory.end, trajectory.reward) == (End.OUT_OF_TURNS, 0.0)
    assert trajectory.summary["repeats"] == turns - 1
    assert trajectory.summary["first_guess"] == 3


def test_a_turn_that_does_not_end_in_its_budget_ends_the_episode_and_keeps_its_tokens(encoder: ChatEncoder) -> None:
    guess, long = encoder.action("guess(8)"), encoder.action("guess(8) is what I think is best")
    policy = Writer(encoder.end_id, one_after_the_other([guess, long]))
    trajectory = played(episode_of(secret(11), encoder, turn=len(guess) + 1), policy)
    assert trajectory.end is End.OUT_OF_TOKENS and trajectory.end.truncated
    assert trajectory.token_ids[-len(guess) - 1 :] == long[: len(guess) + 1]
    assert trajectory.sampled_tokens == 2 * len(guess) + 1
    assert trajectory.reward == 0.0
    assert [turn.valid for turn in trajectory.turns] == [True, False]
    assert trajectory.summary["first_guess"] == 8, "the environment never saw the cut turn"


def test_the_budget_of_a_turn_is_known_before_it(encoder: ChatEncoder) -> None:
    guess, reply = encoder.action("guess(8)"), encoder.observation("higher")
    prompt = len(encoder.prompt(find("number_search").make(secret(11)).start()))
    context = prompt + 2 * len(guess) + 2 * len(reply) + 1
    policy = Writer(encoder.end_id, lambda token_ids, sampling: guess)
    trajectory = played(episode_of(secret(11), encoder, turn=len(guess), context=context), policy)
    assert [sampling.max_tokens for _, sampling in policy.asked] == [len(guess), len(guess), 1]
    assert trajectory.end is End.OUT_OF_TOKENS
    assert len(trajectory.token_ids) == context
    exact = Writer(encoder.end_id, lambda token_ids, sampling: guess)
    trajectory = played(episode_of(secret(11), encoder, turn=len(guess), context=context - 1), exact)
    assert len(exact.asked) == 2, "with no room for one token a turn is not even asked for"
    assert trajectory.end is End.OUT_OF_TOKENS
    assert trajectory.action_mask[-1] == 1, "the reply that no action follows is cut"


def test_a_prompt_that_leaves_no_room_for_a_turn_is_refused(encoder: ChatEncoder) -> None:
    with pytest.raises(InputError, match=r"rollout\.max_context_tokens is 40; raise it"):
        played(episode_of(secret(11), encoder, context=40), Writer(encoder.end_id, guesses(encoder)))


def test_in_a_group_a_prompt_that_is_too_long_costs_the_group(encoder: ChatEncoder) -> None:
    config = CONFIG.model_copy(update={"max_context_tokens": 40})
    failed = group_of(secret(11), Writer(encoder.end_id, guesses(encoder)), LocalHost(find), encoder, config=config)
    assert isinstance(failed, GroupFailure)
    assert failed.kind == "too_long" and "rollout.max_context_tokens is 40" in failed.message


def test_the_first_error_ends_the_other_calls() -> None:
    ended = []

    async def waits(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        asyncio.run(all_or_none([waits(1), fails(), waits(2)]))
    assert ended == [1, 2]


def test_common_noise_makes_sibling_j_one_policy_on_every_task(encoder: ChatEncoder) -> None:
    def seeds(common: bool, number: int) -> list[int]:
        policy = Writer(encoder.end_id, one_after_the_other([encoder.action("guess(8)")] * 4))
        host = LocalHost(find)
        call = play_group(secret(8), number, size=3, seed=5, config=CONFIG, encoder=encoder, policy=policy, host=host, common_noise=common)
        group = asyncio.run(call)
        assert isinstance(group, Group)
        return [trajectory.seed for trajectory in group.trajectories]

    assert seeds(True, 1) == seeds(True, 2)
    assert len(set(seeds(True, 1))) == 3
    assert set(seeds(False, 1)).isdisjoint(seeds(False, 2))


def test_siblings_are_reproducible_and_differ(encoder: ChatEncoder) -> None:
    def group() -> Group | GroupFailure:
        return group_of(secret(11), Writer(encoder.end_id, guesses(encoder)), LocalHost(find), encoder, size=8)

    first, second = group(), group()
    assert isinstance(first, Group)
    assert first == second
    assert [trajectory.member for trajectory in first.trajectories] == list(range(8))
    assert len({trajectory.token_ids for trajectory in first.trajectories}) > 4


def writes_fault_at(encoder: ChatEncoder, fault: str, *, group: int, member: int, times: int) -> Write:
    """Writes `fault` in the second turn of one member, the first `times` attempts only, and something harmless everywhere else."""
    seed = sampling_seed(sampling_seed(5, group, member), 1)
    left = iter([fault] * times)
    return lambda token_ids, sampling: encoder.action(next(left, "x") if sampling.seed == seed else "y")


SHORT = RolloutConfig(max_turn_tokens=16, max_context_tokens=90)


@pytest.mark.parametrize(("fault", "kind"), [("raise", "raised"), ("exit", "died"), ("hang", "timed_out"), ("return-tuple", "garbage")])
def test_a_failing_environment_costs_its_group_only(encoder: ChatEncoder, process: EnvProcess, fault: str, kind: str) -> None:
    host = ProcessHost(process)
    bad = Writer(encoder.end_id, writes_fault_at(encoder, fault, group=0, member=1, times=2))
    good = Writer(encoder.end_id, lambda token_ids, sampling: encoder.action("y"))

    async def both() -> list[Group | GroupFailure]:
        def one(number: int, policy: Policy) -> asyncio.Future[Group | GroupFailure]:
            task = faulty.task_that_fails_at(None)
            return asyncio.ensure_future(play_group(task, number, size=3, seed=5, config=SHORT, encoder=encoder, policy=policy, host=host))

        return await asyncio.gather(one(0, bad), one(1, good))

    failed, whole = asyncio.run(both())
    assert isinstance(failed, GroupFailure)
    assert (failed.group, failed.kind, failed.task.id) == (0, kind, "faulty")
    assert isinstance(whole, Group), "an episode that only shared the process must not fail with it"
    assert [trajectory.end for trajectory in whole.trajectories] == [End.OUT_OF_TOKENS] * 3
    assert len(set(host.names)) == len(host.names), "no attempt's name is used twice, so a late answer reaches nobody"


@pytest.mark.parametrize("place", ["make", "start", "summary"])
def test_an_environment_that_fails_outside_a_step_costs_its_group(encoder: ChatEncoder, process: EnvProcess, place: str) -> None:
    policy = Writer(encoder.end_id, lambda token_ids, sampling: encoder.action("y"))
    failed = group_of(faulty.task_that_fails_at(place), policy, ProcessHost(process), encoder, config=SHORT)
    assert isinstance(failed, GroupFailure)
    assert failed.kind == "raised"
    assert f"refused at {place}" in failed.message


def test_an_environment_in_this_process_that_raises_costs_its_group(encoder: ChatEncoder) -> None:
    policy = Writer(encoder.end_id, lambda token_ids, sampling: encoder.action("raise"))
    failed = group_of(faulty.task_that_fails_at(None), policy, LocalHost(find), encoder)
    assert isinstance(failed, GroupFailure)
    assert (failed.kind, failed.message) == ("raised", "RuntimeError: out of cheese")


def test_a_retry_is_the_same_episode_and_a_new_attempt(encoder: ChatEncoder, process: EnvProcess) -> None:
    host = ProcessHost(process)
    once = Writer(encoder.end_id, writes_fault_at(encoder, "raise", group=4, member=2, times=1))
    never = Writer(encoder.end_id, writes_fault_at(encoder, "raise", group=4, member=2, times=0))
    task = faulty.task_that_fails_at(None)
    retried = group_of(task, once, host, encoder, number=4, config=SHORT)
    assert isinstance(retried, Group)
    assert host.names.count("5.4.2.0") == host.names.count("5.4.2.1") == 1
    undisturbed = group_of(task, never, ProcessHost(process), encoder, number=4, config=SHORT)
    assert isinstance(undisturbed, Group)
    for one, other in zip(retried.trajectories, undisturbed.trajectories, strict=True):
        assert [(turn.token_ids, turn.logp_old) for turn in one.turns] == [(turn.token_ids, turn.logp_old) for turn in other.turns]
        assert one.seed == other.seed


def test_no_retry_is_made_when_none_is_configured(encoder: ChatEncoder, process: EnvProcess) -> None:
    host = ProcessHost(process)
    policy = Writer(encoder.end_id, writes_fault_at(encoder, "raise", group=0, member=0, times=1))
    config = SHORT.model_copy(update={"episode_retries": 0})
    assert isinstance(group_of(faulty.task_that_fails_at(None), policy, host, encoder, config=config), GroupFailure)
    assert all(name.endswith(".0") for name in host.names)


class LateHost(LocalHost):
    """The first attempt's answer comes after its deadline: the caller has been told, and the environment goes on all the same."""

    async def step(self, episode: str, text: str) -> Step:
        if episode.endswith(".0") and text == "guess(8)":
            self.late = asyncio.create_task(super().step(episode, text))
            raise EnvFault("timed_out", "no answer in time")
        return await super().step(episode, text)


def test_a_late_answer_to_an_earlier_attempt_changes_nothing(encoder: ChatEncoder) -> None:
    policy = Writer(encoder.end_id, lambda token_ids, sampling: encoder.action("guess(8)"))
    group = group_of(secret(11), policy, LateHost(find), encoder, size=2)
    assert isinstance(group, Group)
    for trajectory in group.trajectories:
        assert len(trajectory.turns) == 4
        assert trajectory.summary["repeats"] == 3, "a guess of the first attempt would be a repeat more"


def test_a_demonstration_is_what_the_player_wrote(encoder: ChatEncoder) -> None:
    group = demonstrate(secret(11), find("number_search"), "oracle", seed=1, number=6, config=CONFIG, encoder=encoder)
    (trajectory,) = group.trajectories
    assert (trajectory.end, trajectory.reward, trajectory.group) == (End.SOLVED, 1.0, 6)
    assert [turn.token_ids for turn in trajectory.turns] == [encoder.action(turn.text) for turn in trajectory.turns]
    policy = Writer(encoder.end_id, one_after_the_other([turn.token_ids for turn in trajectory.turns]))
    again = played(episode_of(secret(11), encoder), policy)
    assert (again.token_ids, again.action_mask) == (trajectory.token_ids, trajectory.action_mask)


def test_a_demonstration_that_is_too_long_for_a_turn_is_cut_like_a_sampled_one(encoder: ChatEncoder) -> None:
    config = RolloutConfig(max_turn_tokens=1, max_context_tokens=200)
    long = demonstrate(secret(11), find("number_search"), "oracle", seed=1, number=0, config=config, encoder=encoder)
    (trajectory,) = long.trajectories
    whole = encoder.action("guess(8)")
    assert len(whole) == 2 and trajectory.end is End.OUT_OF_TOKENS
    assert trajectory.turns[0].token_ids == whole[:1]


def test_a_seed_is_the_same_everywhere() -> None:
    expected = 6929956040392660302
    assert sampling_seed(0, "rollout", 1) == expected
    assert sampling_seed(12, 3) != sampling_seed(1, 23)
    code = "from rollout.play import sampling_seed; print(sampling_seed(0, 'rollout', 1))"
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == f"{expected}\n"


def test_a_hint_is_read_by_the_policy_and_trained_only_if_wanted(encoder: ChatEncoder) -> None:
    hint = "Hint: the number is in 9-16."
    policies = [Writer(encoder.end_id, guesses(encoder)) for _ in range(3)]

    def play_with(policy: Writer, **settings: Any) -> Group:
        played_group = play_group(
            secret(11), 0, size=2, seed=5, config=CONFIG, encoder=encoder, policy=policy, host=LocalHost(find), **settings
        )
        group = asyncio.run(played_group)
        assert isinstance(group, Group)
        return group

    plain = play_with(policies[0])
    trained, untrained = (play_with(policies[1 + n], hint=hint, train_with_hint=n == 0) for n in range(2))
    prompt = plain.trajectories[0].token_ids[: plain.trajectories[0].turns[0].start]
    long = trained.trajectories[0].token_ids[: trained.trajectories[0].turns[0].start]
    rules = find("number_search").make(secret(11)).start()[0]
    assert long == encoder.prompt([replace(rules, content=f"{rules.content}\n{hint}")]) and len(long) > len(prompt)
    for policy in policies[1:]:
        assert all(asked[: len(long)] == long for asked, _ in policy.asked), "whatever is trained, the sampler read the hint"
    for one, with_hint, without in zip(plain.trajectories, trained.trajectories, untrained.trajectories, strict=True):
        assert (one.departures, with_hint.departures, without.departures) == ((), (), (Departure.HINT,))
        assert with_hint.token_ids == (*long, *one.token_ids[len(prompt) :])
        assert replace(without, departures=()) == one, "the same guesses behind the prompt without the hint"


def test_another_temperature_is_a_departure(encoder: ChatEncoder) -> None:
    for heat, departures in ((None, ()), (CONFIG.temperature, ()), (1.5, (Departure.TEMPERATURE,))):
        policy = Writer(encoder.end_id, guesses(encoder))
        group = asyncio.run(
            play_group(secret(11), 0, size=2, seed=5, config=CONFIG, encoder=encoder, policy=policy, host=LocalHost(find), temperature=heat)
        )
        assert isinstance(group, Group)
        assert [one.departures for one in group.trajectories] == [departures] * 2
        assert {sampling.temperature for _, sampling in policy.asked} == {heat or CONFIG.temperature}
