"""Remedies for dead groups, whose rewards are all equal: play new groups in their place, add a demonstration, or report starvation.

A group is judged by the outcomes of its episodes (`Group.dead`), never by its credit. What is sampled first says how good the policy is;
what comes back here is what is trained. Tasks are then weighted by how often they have a signal: that is the price of a full batch.
"""

from collections.abc import Sequence
from dataclasses import replace

from cluster.actors import Cluster
from cluster.curriculum.stream import TaskStream
from cluster.playable import playable
from cluster.sample import collect_samples, start_sampling
from cluster.show.live import LiveView
from learner.plan import Plan
from rollout.chat import ChatEncoder
from rollout.config import DeadGroupsConfig
from rollout.generator import GroupRequest
from rollout.play import demonstrate, sampling_seed
from rollout.types import Group

_STARVED_STEPS = 5


def plays_again(group: Group, config: DeadGroupsConfig) -> bool:
    """True if a new group is to take the place of this one; a task that all siblings solved is not played again itself."""
    return group.dead and (config.resample_tasks == "other" or not group.trajectories[0].solved)


def refilled(batch: Sequence[Group], new: Sequence[Group]) -> list[Group]:
    """The batch with each new group that is not dead in the place of the dead group of its number; the others stay."""
    alive = {group.trajectories[0].group: group for group in new if not group.dead}
    return [alive.get(group.trajectories[0].group, group) if group.dead else group for group in batch]


class Remedies:
    """The recipe's remedies for one run; new tasks come from the stream that the run's steps take theirs from."""

    def __init__(self, plan: Plan, cluster: Cluster, encoder: ChatEncoder, tasks: TaskStream, view: LiveView) -> None:
        self._plan, self._cluster, self._encoder, self._tasks, self._view = plan, cluster, encoder, tasks, view
        self._config = cluster.config
        self._starved = 0

    def apply(self, step: int, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        """As many groups, with dead ones replaced where that helps, and metrics (none without a remedy in the recipe)."""
        dead = self._config.dead_groups
        batch, metrics = list(groups), dict[str, float]()
        if dead.resample_rounds:
            batch, metrics = self._resample(step, batch)
        if dead.demonstration is not None:
            metrics["groups/demonstrated"] = float(self._demonstrate(step, batch, dead.demonstration))
        self._report(batch)
        return batch, metrics

    def _resample(self, step: int, batch: list[Group]) -> tuple[list[Group], dict[str, float]]:
        """Play new groups for the dead ones, round by round; a new group that is dead too is thrown away."""
        config, first, played, failed = self._config, batch, 0, 0
        for number in range(1, config.dead_groups.resample_rounds + 1):
            requests = [self._request(group) for group in batch if plays_again(group, config.dead_groups)]
            if not requests:
                break
            seed = sampling_seed(config.seed, "rollout", step, "again", number)
            calls = start_sampling(self._cluster.generators, requests, seed)
            sampled = collect_samples(calls, config, f"sampling step {step} again")
            batch = refilled(batch, sampled.groups)
            played += sum(len(group.trajectories) for group in sampled.groups)
            failed += len(sampled.failures)
        filled = sum(now is not before for now, before in zip(batch, first, strict=True))
        return batch, {
            "groups/resampled": float(filled),
            "groups/hinted": float(filled * config.dead_groups.hint),
            "groups/resampled_failed": float(failed),
            "rollout/resampled_episodes": float(played),
        }

    def _request(self, group: Group) -> GroupRequest:
        dead = self._config.dead_groups
        task = self._tasks.another(group.task) if dead.resample_tasks == "other" else group.task
        hint = self._config.env.spec.hint
        return GroupRequest(
            task=task,
            group=group.trajectories[0].group,
            size=len(group.trajectories),
            temperature=dead.temperature,
            hint=hint(task) if dead.hint and hint is not None else None,
            train_with_hint=dead.train_with_hint,
        )

    def _demonstrate(self, step: int, batch: list[Group], player: str) -> int:
        """Put a player's episode in the last sibling's place where nobody solved the task and the player does better."""
        count = 0
        for slot, group in enumerate(batch):
            if not group.dead or group.trajectories[0].solved:
                continue
            *siblings, last = group.trajectories
            seed = sampling_seed(self._config.seed, "rollout", step, "demonstration", last.group)
            with playable(self._config) as spec:
                played = demonstrate(
                    group.task, spec, player, seed=seed, number=last.group, config=self._config.rollout, encoder=self._encoder
                )
            if played.rewards[0] > group.rewards[0]:
                batch[slot] = Group(trajectories=(*siblings, replace(played.trajectories[0], member=last.member)))
                count += 1
        return count

    def _report(self, batch: Sequence[Group]) -> None:
        """Say once, with advice, that for several steps no group has carried a gradient, or that new groups did not fill the batch."""
        dead, rounds = sum(group.dead for group in batch), self._config.dead_groups.resample_rounds
        self._starved = self._starved + 1 if dead == len(batch) or (rounds and dead) else 0
        if self._starved != _STARVED_STEPS or not self._plan.needs_group:
            return
        what = "no gradient: in every group all rewards are equal" if dead == len(batch) else "a batch that new groups did not fill"
        again = f" (the last one had {dead} of {len(batch)} dead groups after {rounds} rounds)" if rounds else ""
        self._view.message(
            f"for {self._starved} steps {what}{again}. If success is near 0, start from demonstrations (cold_start.episodes), take an "
            "easier level (curriculum), raise rollout.temperature, or set dead_groups; near its best, training is done"
        )
