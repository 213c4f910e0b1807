"""The cold start: supervised learning on a scripted player's episodes, through the same learner that RL uses."""

import math
import random

from cluster.actors import Cluster
from cluster.config import RunConfig
from cluster.live import LiveView
from cluster.prepare import demonstrations
from learner.batch import optimizer_steps
from learner.config import AlgorithmConfig
from learner.credit import initial_baseline
from learner.plan import resolve
from rollout.chat import ChatEncoder
from rollout.types import Group

_STEPS_A_CALL = 8


def cold_start(config: RunConfig, cluster: Cluster, encoder: ChatEncoder, view: LiveView) -> None:
    """Imitate `cold_start.episodes` episodes; the method is the table's `sft` row, so only the weight differs from RL."""
    cold = config.cold_start
    view.phase(f"playing {cold.episodes} demonstrations by the {cold.player} player")
    groups = demonstrations(config, encoder, cold.episodes, cold.player)
    algorithm = AlgorithmConfig(method="sft")
    plan = resolve(algorithm)
    batches = _batches(groups, config)
    schedule = config.learner.model_copy(update={"lr": cold.lr, "schedule": "cosine", "warmup_steps": max(1, len(batches) // 20)})
    cluster.learn(lambda rank: rank.begin.remote(algorithm, schedule, len(batches)), "beginning the cold start")
    for done in range(0, len(batches), _STEPS_A_CALL):
        steps = [
            optimizer_steps(
                batch,
                plan,
                ranks=config.cluster.learners,
                micro_batch_tokens=config.learner.micro_batch_tokens,
                generation_limit=config.generation_limit,
                baseline_state=initial_baseline(plan),
                current_version=0,
            )[0][0]
            for batch in batches[done : done + _STEPS_A_CALL]
        ]
        cluster.learn_each([[step.micro_batches[rank] for step in steps] for rank in range(config.cluster.learners)])
        view.progress(min(done + _STEPS_A_CALL, len(batches)), len(batches), "cold start: imitating the demonstrations")


def _batches(groups: list[Group], config: RunConfig) -> list[list[Group]]:
    """Shuffled batches of every epoch."""
    cold = config.cold_start
    shuffle = random.Random(config.seed)
    batches = []
    for _ in range(cold.epochs):
        order = shuffle.sample(groups, len(groups))
        size = math.ceil(len(order) / math.ceil(len(order) / cold.batch_episodes))
        batches += [order[i : i + size] for i in range(0, len(order), size)]
    return batches
