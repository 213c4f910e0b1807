"""Number search: the strict parser, the rules, and every number about the game against exact dynamic programming."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.catalog import ENVS, find
from envs.contract import End, Step, Task
from envs.errors import InputError
from envs.number_search import SPEC, NumberSearch, NumberSearchParams, parse_guess
from envs.number_search_exact import (
    first_guess_success,
    optimal_mean_guesses,
    optimal_success,
    plausible_success,
    plausible_success_by_secret,
    uniform_success,
)
from envs.transcript import play

ROOT = Path(__file__).parents[2]
GAMES = json.loads((ROOT / "tests/golden/number_search.json").read_text())["games"]


def task_of(numbers: int = 16, guesses: int = 4, secret: int = 11) -> Task:
    params = NumberSearchParams(numbers=numbers, guesses=guesses)
    return next(task for task in SPEC.tasks(params, "eval", 0) if task.data["secret"] == secret)


def steps_of(task: Task, texts: Iterable[str]) -> list[Step]:
    env = NumberSearch(task)
    env.start()
    return [env.step(text) for text in texts]


@pytest.mark.parametrize("game", GAMES, ids=lambda game: f"{game['N']}-{game['k']}")
def test_exact_numbers_equal_the_golden_ones(game):
    n, k = game["N"], game["k"]
    assert float(optimal_success(n, k)) == game["optimal"]
    assert float(optimal_mean_guesses(n, k)) == game["mean_guesses_optimal"]
    assert float(plausible_success(n, k)) == pytest.approx(game["consistent"], rel=1e-12)
    assert float(uniform_success(n, k, repeats=True)) == pytest.approx(game["uniform_with_repeats"], rel=1e-12)
    assert float(uniform_success(n, k, repeats=False)) == pytest.approx(game["uniform_without_repeats"], rel=1e-12)
    if game["first_guess_value"]:
        assert [float(value) for value in first_guess_success(n, k)] == game["first_guess_value"]
        assert [float(p) for p in plausible_success_by_secret(n, k)] == pytest.approx(game["consistent_by_secret"], rel=1e-12)


@given(st.integers(2, 40), st.integers(1, 7))
def test_two_ways_to_each_exact_number_agree(n, k):
    assert float(optimal_success(n, k)) == SPEC.best_success(NumberSearchParams(numbers=n, guesses=k))
    assert sum(plausible_success_by_secret(n, k)) / n == plausible_success(n, k)
    assert max(first_guess_success(n, k)) == optimal_success(n, k)


@pytest.mark.parametrize(("n", "k", "best"), [(16, 4, 15), (16, 5, 16), (6, 2, 3), (5, 3, 5)])
def test_no_deterministic_policy_beats_the_optimum_in_the_real_environment(n, k, best):
    """Minimax over every policy, the replies taken from the environment: a leak or an off-by-one would find one secret more."""

    @cache
    def found(history: tuple[int, ...], secrets: tuple[int, ...]) -> int:
        return max(found_with(history, guess, secrets) for guess in range(1, n + 1))

    def found_with(history: tuple[int, ...], guess: int, secrets: tuple[int, ...]) -> int:
        won, groups = 0, defaultdict(list)
        for secret in secrets:
            reply = steps_of(tasks[secret], [f"guess({g})" for g in (*history, guess)])[-1]
            won += reply.end is End.SOLVED
            if reply.end is None:
                groups[reply.observation].append(secret)
        return won + sum(found_of_group(len(history) + 1, tuple(group)) for group in groups.values())

    @cache
    def found_of_group(turns: int, secrets: tuple[int, ...]) -> int:
        # Only how many turns are gone and which secrets remain matters from here on: any history of that length stands for it.
        return found((1,) * turns if 1 not in secrets else (n,) * turns, secrets)

    tasks = {secret: task_of(n, k, secret) for secret in range(1, n + 1)}
    assert found((), tuple(tasks)) == best


def success(name: str, params: NumberSearchParams, seeds: int) -> float:
    tasks = list(SPEC.tasks(params, "eval", 0))
    won = [play(SPEC, params, task, SPEC.players[name](task, seed).act).solved for seed in range(seeds) for task in tasks]
    return sum(won) / len(won)


@pytest.mark.parametrize(("n", "k"), [(16, 4), (16, 5), (32, 5), (64, 6), (100, 7), (7, 2), (2, 1)])
def test_the_oracle_reaches_the_optimum_exactly(n, k):
    assert success("oracle", NumberSearchParams(numbers=n, guesses=k), seeds=1) == float(optimal_success(n, k))


def test_measured_players_agree_with_their_exact_success():
    params = NumberSearchParams()
    # 16 x 500 episodes: a standard error of .0055 and .0047; four of them are allowed.
    assert success("plausible", params, seeds=500) == pytest.approx(0.579924, abs=0.022)
    assert success("random", params, seeds=500) == pytest.approx(0.227524, abs=0.019)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("guess(8)", 8),
        ("guess(0)", 0),
        ("guess(-3)", -3),
        ("guess(999999999)", 999999999),
        ("", "Nothing was written"),
        ("guess(8)guess(9)", "2 guesses"),
        ("guess(8)\nguess(8)", "2 guesses"),
        ("guess(8) ", "Text around"),
        (" guess(8)", "Text around"),
        ("guess(8)\n", "Text around"),
        ("guess(8).", "Text around"),
        ("guess(8)<|im_end|>", "Text around"),
        ("guess(8)\0", "Text around"),
        ("Guess(8)", "No guess"),
        ("guess (8)", "No guess"),
        ("guess( 8 )", "No guess"),
        ("guess(08)", "No guess"),
        ("guess(-0)", "No guess"),
        ("guess(+8)", "No guess"),
        ("guess(8.0)", "No guess"),
        ("guess(1_0)", "No guess"),
        ("guess(\u0668)", "No guess"),
        ("guess(\uff18)", "No guess"),
        ("guess()", "No guess"),
        ("8", "No guess"),
        ("guess(" + "9" * 5000 + ")", "No guess"),
        ("\ud800", "No guess"),
    ],
)
def test_every_text_has_a_defined_answer(text, answer):
    parsed = parse_guess(text)
    assert parsed == answer if isinstance(answer, int) else parsed.startswith(answer)


@given(st.text())
def test_the_parser_is_total_and_never_repeats_what_it_read(text):
    parsed = parse_guess(text)
    assert isinstance(parsed, str)
    assert parsed == parse_guess(text)
    assert len(text) < 8 or text not in parsed


@given(st.integers(-(10**8), 10**8))
def test_every_integer_in_plain_form_is_read(number):
    assert parse_guess(f"guess({number})") == number


def test_the_reply_speaks_of_the_secret():
    steps = steps_of(task_of(secret=11), ["guess(8)", "guess(12)", "guess(10)", "guess(11)"])
    assert [step.observation for step in steps] == ["higher", "lower", "higher", "correct"]
    assert [step.reward for step in steps] == [0.0, 0.0, 0.0, 1.0]
    assert [step.end for step in steps] == [None, None, None, End.SOLVED]


def test_a_wrong_last_guess_is_answered_timeout():
    steps = steps_of(task_of(secret=16), ["guess(8)", "guess(12)", "guess(14)", "guess(15)"])
    assert steps[-1] == Step(observation="timeout", reward=0.0, end=End.OUT_OF_TURNS)
    assert [step.end for step in steps[:-1]] == [None] * 3


def test_a_search_that_fails_is_paid_for_what_it_learned_and_less_than_a_find():
    params = NumberSearchParams(shaping=0.5)
    task = next(task for task in SPEC.tasks(params, "eval", 0) if task.data["secret"] == 16)
    for guesses, left in (((8, 12, 14, 15), 1), ((8, 12, 8, 12), 4), ((1, 1, 1, 1), 15)):
        *before, last = steps_of(task, [f"guess({number})" for number in guesses])
        assert last.reward == pytest.approx(0.5 * (1 - math.log(left) / math.log(16)), abs=1e-12)
        assert last.end is End.OUT_OF_TURNS and not any(step.reward for step in before)
    assert steps_of(task, ["guess(16)"])[-1].reward == 1.0
    assert [step.reward for step in steps_of(task, ["guess(8)", "x", "guess(12)", "x"])] == [0.0] * 4, "nothing is paid for a refused end"


@pytest.mark.parametrize("shaping", [0.1, 0.99])
def test_whoever_maximises_the_shaped_reward_finds_as_many_numbers_as_possible(shaping):
    """Every optimal policy of the shaped game, by dynamic programming over how many numbers are left: no success is traded for bits."""

    def fewest_found(n: int, k: int) -> int:
        @cache
        def best(left: int, turns: int) -> tuple[float, int]:
            """The largest sum of rewards over the secrets that are left, and the fewest of them that a policy with this sum finds."""
            if left == 0 or turns == 0:
                return (left * shaping * (1 - math.log(left) / math.log(n)) if left else 0.0), 0
            pairs = [(best(guess, turns - 1), best(left - 1 - guess, turns - 1)) for guess in range(left)]
            options = [(1 + under[0] + over[0], 1 + under[1] + over[1]) for under, over in pairs]
            highest = max(total for total, _ in options)
            return highest, min(found for total, found in options if total > highest - 1e-9)

        return best(n, k)[1]

    for n in range(2, 40):
        for k in range(1, 7):
            assert fewest_found(n, k) == min(n, 2**k - 1)


@given(numbers=st.integers(2, 300), data=st.data())
def test_the_hint_is_true_and_halves_the_numbers(numbers, data):
    secret = data.draw(st.integers(1, numbers))
    low, high = map(int, re.findall(r"[0-9]+", SPEC.hint(task_of(numbers, 4, secret))))
    assert low <= secret <= high
    assert high - low + 1 <= (numbers + 1) // 2


def test_a_refused_action_costs_a_turn_and_changes_nothing():
    env = NumberSearch(task_of(secret=11))
    env.start()
    steps = [env.step(text) for text in ("guess(8)", "what?", "guess(17)", "guess(11)")]
    assert [step.valid for step in steps] == [True, False, False, True]
    assert steps[2].observation == "Out of range; guess a number in 1-16."
    assert steps[3] == Step(observation="correct", reward=1.0, end=End.SOLVED)
    assert env.summary() == {"consistent_share": 1.0, "repeats": 0.0, "middle_distance": 1.0, "invalid": 2.0, "first_guess": 8.0}


def test_a_refused_last_action_ends_the_episode():
    steps = steps_of(task_of(guesses=2), ["guess(8)", "guess(99)"])
    assert (steps[-1].end, steps[-1].valid, steps[-1].reward) == (End.OUT_OF_TURNS, False, 0.0)


def test_three_unparsable_actions_in_a_row_end_the_episode():
    assert [step.end for step in steps_of(task_of(), ["", "a", "b"])] == [None, None, End.INVALID_ACTIONS]
    # On the last turn too, the more precise end is told.
    assert steps_of(task_of(guesses=3), ["", "a", "b"])[-1].end is End.INVALID_ACTIONS


@pytest.mark.parametrize("between", ["guess(1)", "guess(99)"])
def test_an_action_that_can_be_parsed_breaks_the_row(between):
    steps = steps_of(task_of(guesses=6), ["", "a", between, "", "a"])
    assert all(step.end is None for step in steps)


def test_the_summary_judges_each_guess_by_the_replies_before_it():
    env = NumberSearch(task_of(secret=11))
    env.start()
    # 4 fits 1-16 (middle 8.5), then 5-16 (10.5): 2 does not fit, then 12 fits, then 5-11 (8): 12 again does not.
    for guess in (4, 2, 12, 12):
        env.step(f"guess({guess})")
    expected = {"consistent_share": 0.5, "repeats": 1.0, "middle_distance": (4.5 + 8.5 + 1.5 + 4) / 4, "invalid": 0.0, "first_guess": 4.0}
    assert env.summary() == expected


def test_no_step_after_the_end():
    env = NumberSearch(task_of(secret=8))
    env.start()
    env.step("guess(8)")
    with pytest.raises(AssertionError, match="after the episode had ended"):
        env.step("guess(8)")


def test_the_prompt_is_short_and_does_not_depend_on_the_secret():
    prompts = {NumberSearch(task).start() for task in SPEC.tasks(NumberSearchParams(), "eval", 0)}
    ((message,),) = prompts
    assert message.role == "user"
    assert message.content.startswith("Find the number in 1-16.")
    assert len(message.content.split()) <= 30


def test_the_train_stream_gives_every_secret_once_a_pass_in_a_new_order():
    params = NumberSearchParams()
    secrets = [task.data["secret"] for task in islice(SPEC.tasks(params, "train", 3), 48)]
    passes = [tuple(secrets[start : start + 16]) for start in (0, 16, 32)]
    assert all(sorted(one) == list(range(1, 17)) for one in passes)
    assert len(set(passes)) == 3
    assert secrets != [task.data["secret"] for task in islice(SPEC.tasks(params, "train", 4), 48)]


def test_the_eval_stream_is_exhaustive():
    tasks = list(SPEC.tasks(NumberSearchParams(), "eval", 0))
    assert [task.data["secret"] for task in tasks] == list(range(1, 17))
    assert tasks[10].id == "number_search/16-4/11"


def test_wrong_input_is_refused_with_a_way_out():
    with pytest.raises(InputError, match="did you mean 'train'"):
        SPEC.tasks(NumberSearchParams(), "trian", 0)
    with pytest.raises(InputError, match="did you mean 'number_search'"):
        find("numbersearch")
    with pytest.raises(InputError, match=r"No module named 'envs\.nowhere'"):
        find("envs.nowhere:SPEC")
    with pytest.raises(InputError, match="did you mean 'SPEC'"):
        find("envs.number_search:SPECS")
    with pytest.raises(InputError, match=r"type function; expected an envs\.contract\.EnvSpec"):
        find("envs.number_search:tasks")
    with pytest.raises(InputError, match=r"package\.module:ATTRIBUTE"):
        find(":SPEC")
    with pytest.raises(InputError, match=r"secret in 1\.\.numbers"):
        SPEC.make(Task(id="x", env="number_search", split="eval", level="", seed=0, data={"numbers": 4, "guesses": 2, "secret": 5}))
    with pytest.raises(ValidationError):
        NumberSearchParams(numbers=1)
    with pytest.raises(ValidationError):
        NumberSearchParams(number=16)


def test_environments_are_found_by_name_and_by_path():
    assert find("number_search") is SPEC
    assert find("envs.number_search:SPEC") is SPEC
    assert all(spec.name == name for name, spec in ENVS.items())


def transcripts_digest() -> str:
    params = NumberSearchParams()
    digest = hashlib.sha256()
    for name, player in SPEC.players.items():
        for seed, task in enumerate(islice(SPEC.tasks(params, "train", 7), 64)):
            digest.update(f"{name} {task} {play(SPEC, params, task, player(task, seed).act)}".encode())
    return digest.hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_transcripts_do_not_depend_on_the_hash_seed(hash_seed):
    code = "from tests.envs.test_number_search import transcripts_digest; print(transcripts_digest())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == transcripts_digest()
