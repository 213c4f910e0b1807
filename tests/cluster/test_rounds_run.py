"""Whole runs of the methods that learn in rounds, on real parts: what is learned from, when it is pushed, and from where it starts."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from cluster.actors import Cluster, running
from cluster.improve import Rounds
from cluster.loop import Training
from cluster.prepare import prepare_model
from cluster.run_folder import RunFolder
from cluster.show.live import LiveView
from cluster.sinks import read_metrics
from learner.plan import resolve
from tests.cluster.test_real_run import quiet, tiny
from tests.learner.builders import one_turn_group

START = ("env.params.numbers=4", "env.params.guesses=2", "cold_start.episodes=1024", "cold_start.batch_episodes=32", "cold_start.lr=3e-3")
ROUNDS = (
    "algorithm.drift=null",
    "algorithm.kl_coef=null",
    "learner.minibatches=1",
    "grow.steps=2",
    "grow.epochs=1",
    "steps=3",
    "eval.every=3",
)
EPISODES = 16


def test_a_round_in_which_nothing_passed_leaves_the_policy_alone_and_says_so() -> None:
    config, said = tiny("algorithm.method=rest", *ROUNDS), io.StringIO()
    nobody = Cluster(generators=(), learners=(), env_workers=(), config=config, transfer="gloo")
    rounds = Rounds(resolve(config.algorithm), nobody, LiveView(3, title="test", console=Console(file=said)), base_version=0)
    assert rounds.grow(1, [one_turn_group([0.0, 0.5])]) == {"grow/round": 1.0, "grow/kept_fraction": 0.0, "grow/data_episodes": 0.0}
    assert rounds.improve(2, version=0) == {}
    assert "round 1: nothing to improve on" in said.getvalue()


@pytest.mark.parametrize(
    ("method", "filters"),
    [("rest", ("algorithm.filter_threshold=0.0", "grow.raise_to=[1.0]", "grow.batch_episodes=64")), ("rest_em", ())],
)
def test_a_round_samples_and_then_improves(method: str, filters: tuple[str, ...], tmp_path: Path) -> None:
    config = tiny(f"algorithm.method={method}", *START, *ROUNDS, *filters)
    folder = RunFolder.create(tmp_path / "run", config, overwrite=False)
    model = prepare_model(config, folder.path)
    with running(config, model) as cluster, folder.sink(config) as sink:
        training = Training(config, folder, quiet(3), cluster, sink, model)
        training.start()
        training.rl()

        def scores() -> object:
            return cluster.learn(lambda rank: rank.score.remote(training.probe), "scoring")[0]

        improved = scores()
        assert training.rounds is not None and training.attested is not None
        assert improved == training.attested.learner
        training.rounds.improve(3, training.version)
        same_again = scores() == improved
    first, second, third = read_metrics(folder.path)[1:]
    assert training.version == 3, "the cold start and two rounds; the last step ends the second"
    assert "sync/push_s" not in first and "learner/grad_norm" not in first
    assert second["sync/probe_moved"] > 1e-4 and third["sync/probe_moved"] > 1e-4
    assert [step["grow/round"] for step in (first, second, third)] == [1, 1, 2]
    assert second["sync/sampler_learner_gap"] < 1e-4, "the first optimiser step of an improve phase trains what its weights sampled"
    kept = [round(step["grow/kept_fraction"] * EPISODES) for step in (first, second, third)]
    solved = [round(step["rollout/success"] * EPISODES) for step in (first, second, third)]
    assert all(0 < count < EPISODES for count in solved), "a filter that keeps all or nothing shows nothing"
    sizes = [step["grow/data_episodes"] for step in (first, second, third)]
    if method == "rest":
        assert kept == [EPISODES] * 3 and sizes == [EPISODES, 2 * EPISODES, 3 * EPISODES]
        assert [step["grow/learned_episodes"] for step in (second, third)] == [sum(solved[:2]), sum(solved)]
        assert [step["grow/threshold"] for step in (second, third)] == [1.0, 1.0]
        assert third["sync/sampler_learner_gap"] < 1e-4
        assert not same_again, "ReST goes on from where it is"
    else:
        assert kept == solved and sizes == [solved[0], solved[0] + solved[1], solved[2]]
        assert [step["grow/learned_episodes"] for step in (second, third)] == [sum(solved[:2]), solved[2]]
        assert "sync/sampler_learner_gap" not in third, "the base did not sample the second round"
        assert same_again, "ReST-EM begins every round at the base, with a fresh optimiser"
