"""vLLM samples from exactly the distribution that transformers computes, reports its log-probs, and takes new weights whole."""

from collections.abc import Iterator
from random import Random

import pytest
import torch

from learner.config import TinyModelConfig
from learner.tiny import build_tiny
from rollout.types import Completion, Sampling
from tests.rollout import engine_process
from tests.rollout.engine_process import Pair
from tests.rollout.tokenizers import tokenizer

MAX_MODEL_LEN = 160
TOLERANCE = 1e-5
"""Two float32 implementations of one model: their log-probs differ by about 1e-6."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    folder = tmp_path_factory.mktemp("models")
    words = tokenizer()
    started = {}
    for name, tied in (("untied", False), ("tied", True)):
        shape = TinyModelConfig(hidden_size=64, layers=2, heads=2, kv_heads=1, intermediate_size=96, tie_embeddings=tied, seed=5)
        build_tiny(folder / name, words, shape)
        started[name] = Pair(str(folder / name), words.eos_token_id, MAX_MODEL_LEN)
    try:
        yield {name: pair.wait() for name, pair in started.items()}
    finally:
        for pair in started.values():
            pair.engine.hang_up()
        for pair in started.values():
            pair.close()


@pytest.fixture
def pair(pairs: dict[str, Pair]) -> Pair:
    return pairs["untied"]


@pytest.fixture(params=["untied", "tied"])
def either(pairs: dict[str, Pair], request: pytest.FixtureRequest) -> Pair:
    return pairs[request.param]


def prompt(length: int, seed: int) -> tuple[int, ...]:
    draw = Random(seed)
    return tuple(draw.randrange(3, 280) for _ in range(length))


def seeded(count: int, *, temperature: float = 1.0, tokens: int = 12, first: int = 0) -> list[Sampling]:
    return [Sampling(temperature=temperature, max_tokens=tokens, seed=first + number) for number in range(count)]


def sample(pair: Pair, prompts: list[tuple[int, ...]], samplings: list[Sampling]) -> list[Completion]:
    return pair.engine(engine_process.sample, prompts, samplings)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_reported_log_probs_are_those_of_transformers(either: Pair, temperature: float) -> None:
    prompts = [prompt(length, length) for length in (1, 5, 31, 32, 33, 64, 100, 100)]
    completions = sample(either, prompts, seeded(len(prompts), temperature=temperature))
    for before, completion in zip(prompts, completions, strict=True):
        assert either.gap(before, completion, temperature) < TOLERANCE


def test_sampled_tokens_follow_the_distribution(pair: Pair) -> None:
    """Chi-square of 4000 first tokens against transformers' probabilities, over 8 bins of about equal probability."""
    before = prompt(20, 1)
    draws = 4000
    sampled = [completion.token_ids[0] for completion in sample(pair, [before] * draws, seeded(draws, tokens=1))]
    probability = pair.log_probs(before)[-1].exp()
    order = torch.randperm(len(probability), generator=torch.Generator().manual_seed(0))
    bins = torch.empty_like(order)
    bins[order] = (probability[order].cumsum(0) * 8).long().clamp(max=7)
    expected = torch.zeros(8).index_add(0, bins, probability) * draws
    seen = torch.bincount(bins[torch.tensor(sampled)], minlength=8)
    assert float(((seen - expected) ** 2 / expected).sum()) < 24.3, "beyond the 0.999 quantile with 7 degrees of freedom"


def test_greedy_takes_the_most_probable_token(pair: Pair) -> None:
    prompts = [prompt(length, length) for length in (3, 40, 90)]
    for before, completion in zip(prompts, sample(pair, prompts, [Sampling(temperature=0.0, max_tokens=8)] * 3), strict=True):
        rows = pair.log_probs([*before, *completion.token_ids])[len(before) - 1 : -1]
        assert rows.argmax(-1).tolist() == list(completion.token_ids)


def test_a_seed_gives_the_same_turn_whatever_else_is_sampled(pair: Pair) -> None:
    before = prompt(50, 7)
    (alone,) = sample(pair, [before], seeded(1, first=11))
    others = [prompt(length, length) for length in range(2, 102, 2)]
    crowd = sample(pair, [*others, before], seeded(len(others)) + seeded(1, first=11))
    assert crowd[-1].token_ids == alone.token_ids
    assert len({completion.token_ids for completion in sample(pair, [before] * 8, seeded(8))}) == 8


def test_a_turn_ends_with_the_end_token_or_at_its_budget(pair: Pair) -> None:
    completions = sample(pair, [prompt(9, 3)] * 60, seeded(60, tokens=100))
    stopped = [completion for completion in completions if completion.stopped]
    assert 0 < len(stopped) < 60
    for completion in completions:
        assert completion.stopped == (completion.token_ids[-1] == pair.end_id)
        assert pair.end_id not in completion.token_ids[:-1]
        assert completion.stopped or len(completion.token_ids) == 100


def test_the_whole_context_can_be_used(pair: Pair) -> None:
    before = prompt(MAX_MODEL_LEN - 3, 1)
    (completion,) = sample(pair, [before], seeded(1, tokens=3))
    assert len(completion.token_ids) == 3
    assert pair.gap(before, completion) < TOLERANCE


def test_a_request_that_leaves_no_room_is_an_error_and_not_a_hang(pair: Pair) -> None:
    with pytest.raises(AssertionError, match=f"{MAX_MODEL_LEN + 1} tokens leave no room to sample"):
        pair.engine(engine_process.score, [prompt(MAX_MODEL_LEN + 1, 2)])


def test_scores_are_those_of_transformers_cached_or_not(either: Pair) -> None:
    rows = [prompt(length, 2) for length in (2, 31, 64, 90, MAX_MODEL_LEN)]
    sample(either, rows[:-1], seeded(len(rows) - 1))
    for row, scores in zip(rows, either.engine(engine_process.score, rows), strict=True):
        assert len(scores) == len(row) - 1
        expected = either.logp(row[:1], row[1:])
        assert float((expected - torch.tensor(scores)).abs().max()) < TOLERANCE


def test_siblings_share_their_prompt(pair: Pair) -> None:
    before = prompt(64 + 1, 99)
    (first,) = sample(pair, [before], seeded(1))
    assert first.cached_tokens == 0
    assert [sibling.cached_tokens for sibling in sample(pair, [before] * 4, seeded(4))] == [64] * 4


def test_after_a_push_the_engine_is_the_new_model(either: Pair) -> None:
    before = prompt(70, 4)
    for version in (1, 2):
        (old,) = sample(either, [before], seeded(1))
        either.move(seed=version)
        assert either.gap(before, old) > 1e-2, "the model has to move, or nothing is proven"
        either.push(version)
        (new,) = sample(either, [before], seeded(1))
        assert (new.first_version, new.last_version) == (version, version)
        assert either.gap(before, new) < TOLERANCE


def test_without_the_reset_of_the_prefix_cache_the_engine_would_be_a_mixture(pair: Pair) -> None:
    before = prompt(70, 5)
    sample(pair, [before], seeded(1))
    pair.move(seed=3)
    pair.send()
    pair.engine(engine_process.go_on_without_commit)
    (mixed,) = sample(pair, [before], seeded(1))
    assert pair.gap(before, mixed) > 1e-3, "64 of the 70 tokens are in the cache, as the old weights saw them"
    pair.engine(engine_process.commit, 3)
    (clean,) = sample(pair, [before], seeded(1))
    assert pair.gap(before, clean) < TOLERANCE


def test_a_turn_asked_for_during_a_push_is_of_the_new_version_only(pair: Pair) -> None:
    before = prompt(40, 8)
    pair.push(6)
    pair.move(seed=6)
    pair.send()
    pair.engine(engine_process.begin, before, Sampling(max_tokens=5, seed=3), 0)
    pair.engine(engine_process.commit, 7)
    completion = pair.engine(engine_process.finish)
    assert (completion.first_version, completion.last_version) == (7, 7)
    assert pair.gap(before, completion) < TOLERANCE


def test_a_turn_that_lives_through_a_push_goes_on_as_the_new_model(pair: Pair) -> None:
    before = prompt(40, 6)
    pair.push(4)
    pair.engine(engine_process.begin, before, Sampling(max_tokens=100, seed=2), 5)
    old_weights = {name: weight.clone() for name, weight in pair.lm.state_dict().items()}
    pair.move(seed=4)
    pair.push(5)
    completion = pair.engine(engine_process.finish)
    assert (completion.first_version, completion.last_version) == (4, 5)
    reported = torch.tensor(completion.logp_old)
    new_fits = (pair.logp(before, completion.token_ids) - reported).abs() < TOLERANCE
    pair.lm.load_state_dict(old_weights)
    old_fits = (pair.logp(before, completion.token_ids) - reported).abs() < TOLERANCE
    pushed_at = int(old_fits.sum())
    assert 5 <= pushed_at < len(reported)
    assert old_fits.tolist() == [True] * pushed_at + [False] * (len(reported) - pushed_at)
    assert new_fits.tolist() == [False] * pushed_at + [True] * (len(reported) - pushed_at)
