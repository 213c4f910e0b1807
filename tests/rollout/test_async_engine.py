"""The same as `test_engine` for vLLM's AsyncLLM, whose core runs in a process of its own."""

from collections.abc import Iterator

import pytest
import torch

from learner.config import TinyModelConfig
from learner.tiny import build_tiny
from rollout.types import Sampling
from tests.rollout import engine_process
from tests.rollout.engine_process import Pair
from tests.rollout.test_engine import TOLERANCE, prompt, sample, seeded
from tests.rollout.tokenizers import tokenizer

pytestmark = pytest.mark.slow
LONG = 2000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("models") / "tied"
    shape = TinyModelConfig(hidden_size=64, layers=2, heads=2, kv_heads=1, max_position=LONG + 100, init_std=0.02, seed=5)
    build_tiny(folder, tokenizer(), shape)
    started = Pair(str(folder), 344, LONG + 50, engine="async")
    try:
        yield started.wait()
    finally:
        started.close()


def test_log_probs_scores_and_seeds(pair: Pair) -> None:
    prompts = [prompt(length, length) for length in (1, 32, 70, 70)]
    completions = sample(pair, prompts, seeded(4, temperature=0.7))
    assert max(pair.gap(before, completion, 0.7) for before, completion in zip(prompts, completions, strict=True)) < TOLERANCE
    assert sample(pair, prompts[2:3], seeded(1, temperature=0.7, first=2))[0].token_ids == completions[2].token_ids
    assert {(completion.first_version, completion.last_version) for completion in completions} == {(0, 0)}
    rows = [prompt(LONG + 50, 1), prompt(40, 2)]
    for row, scores in zip(rows, pair.engine(engine_process.score, rows), strict=True):
        assert float((pair.logp(row[:1], row[1:]) - torch.tensor(scores)).abs().max()) < TOLERANCE


@pytest.mark.parametrize("version", [1, 2])
def test_a_turn_that_lives_through_a_push_goes_on_as_the_new_model(pair: Pair, version: int) -> None:
    before = prompt(40, 6)
    # Any token may be the end, so the seed of a long turn is looked for.
    lengths = [len(completion.token_ids) for completion in sample(pair, [before] * 16, seeded(16, tokens=LONG // 2))]
    pair.engine(engine_process.begin_for, before, Sampling(max_tokens=LONG, seed=lengths.index(max(lengths))), 0.5)
    old_weights = {name: weight.clone() for name, weight in pair.lm.state_dict().items()}
    pair.move(seed=version)
    pair.push(version)
    completion = pair.engine(engine_process.finish)
    assert (completion.first_version, completion.last_version) == (version - 1, version)
    reported = torch.tensor(completion.logp_old)
    new = pair.lm.state_dict()
    new_fits = (pair.logp(before, completion.token_ids) - reported).abs() < 10 * TOLERANCE
    pushed_at = len(reported) - int(new_fits.sum())
    new_weights = {name: weight.clone() for name, weight in new.items()}
    pair.lm.load_state_dict(old_weights)
    old_fits = (pair.logp(before, completion.token_ids) - reported).abs() < 10 * TOLERANCE
    pair.lm.load_state_dict(new_weights)
    assert 0 < pushed_at < len(reported)
    assert old_fits[:pushed_at].all() and not old_fits[pushed_at:].all()
    assert new_fits[pushed_at:].all()
    (fresh,) = sample(pair, [before], seeded(1))
    assert (fresh.first_version, fresh.last_version) == (version, version)
    assert pair.gap(before, fresh) < TOLERANCE
