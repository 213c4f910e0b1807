"""Rounds: steps that only sample and grow a data set (`learner.grow`), and the improve phase that ends each round."""

from collections.abc import Sequence

from cluster.actors import Cluster
from cluster.imitate import imitate
from cluster.show.live import LiveView
from learner.grow import added, kept, learned_from, raised, shuffled_batches
from learner.plan import Plan
from rollout.play import sampling_seed
from rollout.types import Group


class Rounds:
    """The data set of one run. `grow` takes every step's groups; after the steps for which `ends` is true, `improve` learns.

    Rows whose data is `newest` improve from `base_version`, the weights before RL, and forget the data of the round before.
    """

    def __init__(self, plan: Plan, cluster: Cluster, view: LiveView, base_version: int) -> None:
        self._plan, self._cluster, self._view, self._base_version = plan, cluster, view, base_version
        self._config = cluster.config
        self._renews = plan.method.data == "newest"
        self.data: tuple[Group, ...] = ()

    def round(self, step: int) -> int:
        """The round of sampling step `step`, both from 1."""
        return -(-step // self._config.grow.steps)

    def ends(self, step: int) -> bool:
        """True for the last sampling step of a round; the run's last step ends the last round, however short."""
        return step % self._config.grow.steps == 0 or step == self._config.steps

    def grow(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Add the episodes of a step that pass the filter; returns metrics."""
        if self._renews and self.round(step) != self.round(step - 1):
            self.data = ()
        new = kept(groups, self._plan)
        self.data = added(self.data, new, self._config.grow)
        return {
            "grow/round": float(self.round(step)),
            "grow/kept_fraction": len(new) / sum(len(group.trajectories) for group in groups),
            "grow/data_episodes": float(len(self.data)),
        }

    def improve(self, step: int, version: int) -> dict[str, float]:
        """Imitate the data set through each filter in turn; returns metrics, or none if there was nothing to learn from.

        `version` is that of the learner's weights. The policy then stays what it is: a data set without an episode says nothing.
        """
        grow, learner = self._config.grow, self._config.learner
        batches, sizes, plans = [], [], raised(self._plan, grow)
        for number, plan in enumerate(plans):
            episodes = learned_from(self.data, plan, grow)
            seed = sampling_seed(self._config.seed, "improve", self.round(step), number)
            batches += [(plan, batch) for batch in shuffled_batches(episodes, epochs=grow.epochs, size=grow.batch_episodes, seed=seed)]
            sizes.append(len(episodes))
        if not batches:
            self._view.message(
                f"round {self.round(step)}: nothing to improve on, not one episode passed the filter. Lower algorithm.filter_threshold, "
                "start from demonstrations (cold_start.episodes), or take an easier level"
            )
            return {}
        phase = learner.model_copy(update={"warmup_steps": min(learner.warmup_steps, len(batches) // 10)})
        start = "base" if self._renews else "here"
        self._cluster.learn(lambda rank: rank.begin.remote(self._config.algorithm, phase, len(batches), start), "beginning to improve")
        metrics = imitate(self._cluster, batches, version=self._base_version if self._renews else version)
        # A data set may be too poor for the highest thresholds; the last one that let something through is what was reached.
        reached = max(number for number, size in enumerate(sizes) if size)
        return metrics | {
            "grow/threshold": plans[reached].config.filter_threshold,
            "grow/learned_episodes": float(sizes[reached]),
            "grow/optimizer_steps": float(len(batches)),
        }
