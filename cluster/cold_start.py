"""The cold start: supervised learning on a scripted player's episodes, through the same learner that RL uses."""

from pathlib import Path

from cluster.actors import Cluster
from cluster.config import RunConfig
from cluster.demos import demonstrations_of, read_demos
from cluster.imitate import imitate
from cluster.prepare import demonstrations
from cluster.show.live import LiveView
from learner.config import AlgorithmConfig
from learner.grow import shuffled_batches
from learner.plan import resolve
from rollout.chat import ChatEncoder


def cold_start(config: RunConfig, cluster: Cluster, encoder: ChatEncoder, view: LiveView) -> None:
    """Imitate `cold_start.episodes` episodes; the method is the table's `sft` row, so only the weight differs from RL."""
    cold = config.cold_start
    if cold.file is not None:
        view.phase(f"reading demonstrations from {cold.file}")
        groups = list(demonstrations_of(read_demos(Path(cold.file))[: cold.episodes], config, encoder))
    else:
        view.phase(f"playing {cold.episodes} demonstrations by the {cold.player} player")
        groups = demonstrations(config, encoder, cold.episodes, cold.player)
    if cut := sum(group.trajectories[0].end.truncated for group in groups):
        view.message(
            f"note: {cut} of {len(groups)} demonstrations do not fit into rollout.max_context_tokens={config.rollout.max_context_tokens} "
            f"or rollout.max_turn_tokens={config.rollout.max_turn_tokens}; they are imitated as far as they do"
        )
    algorithm = AlgorithmConfig(method="sft")
    batches = shuffled_batches(groups, epochs=cold.epochs, size=cold.batch_episodes, seed=config.seed)
    schedule = config.learner.model_copy(update={"lr": cold.lr, "schedule": "cosine", "warmup_steps": max(1, len(batches) // 20)})
    cluster.learn(lambda rank: rank.begin.remote(algorithm, schedule, len(batches)), "beginning the cold start")
    plan = resolve(algorithm)
    imitate(
        cluster,
        [(plan, batch) for batch in batches],
        done=lambda steps: view.progress(steps, len(batches), "cold start: imitating the demonstrations"),
    )
