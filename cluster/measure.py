"""Metrics of sampled episodes: pure functions of groups."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from envs.contract import End
from envs.metrics import Metric, Reduction, reduce_metrics
from rollout.play import GroupFailure
from rollout.types import Group, Trajectory

_LOSSES = ("learner/loss", "value/loss")


def split(results: Sequence[Group | GroupFailure]) -> tuple[list[Group], list[GroupFailure]]:
    """The groups that were played, and those whose environment failed."""
    groups = [result for result in results if isinstance(result, Group)]
    return groups, [result for result in results if isinstance(result, GroupFailure)]


def rollout_metrics(groups: Sequence[Group], failures: Sequence[GroupFailure], seconds: float) -> dict[str, float]:
    """What one batch of groups says: success, reward, ends, dead groups, speed over `seconds` of playing (not of waiting for it).

    `rollout/informative` is the share of groups whose rewards differ; `level/NAME/...` is said of each level that was played.
    """
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    tokens = sum(episode.sampled_tokens for episode in episodes)
    turns = sum(len(episode.turns) for episode in episodes)
    dead_zero = sum(group.dead and not group.trajectories[0].solved for group in groups)
    dead_one = sum(group.dead and group.trajectories[0].solved for group in groups)
    metrics = {
        "rollout/success": _share(episodes, lambda e: e.solved),
        "rollout/reward": sum(e.reward or 0.0 for e in episodes) / len(episodes),
        "rollout/turns": turns / len(episodes),
        "rollout/sampled_tokens": float(tokens),
        "rollout/tokens_per_s": tokens / seconds,
        "rollout/episodes_per_s": len(episodes) / seconds,
        "rollout/invalid_fraction": sum(not turn.valid for e in episodes for turn in e.turns) / max(turns, 1),
        "rollout/truncated_fraction": _share(episodes, lambda e: e.end.truncated),
        "rollout/informative": sum(not group.dead for group in groups) / len(groups),
        "groups/dead_zero_fraction": dead_zero / len(groups),
        "groups/dead_one_fraction": dead_one / len(groups),
        "groups/dead_fraction": (dead_zero + dead_one) / len(groups),
        "groups/failed": float(len(failures)),
    }
    ends = Counter(episode.end for episode in episodes)
    metrics |= {f"end/{end.value}": ends[end] / len(episodes) for end in End if end.scored}
    metrics |= {f"failure/{kind}": float(count) for kind, count in Counter(f.kind for f in failures).items()}
    return metrics | level_metrics(groups)


def level_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Success and number of the groups of each level that was played; nothing of tasks whose level has no name."""
    return reduce_metrics(
        {
            f"level/{group.task.level}/success": Metric(
                value=_share(group.trajectories, lambda e: e.solved), weight=len(group.trajectories)
            ),
            f"level/{group.task.level}/groups": Metric(value=1.0, reduction=Reduction.SUM),
        }
        for group in groups
        if group.task.level
    )


def learner_metrics(ranks: Sequence[Sequence[Mapping[str, Metric]]]) -> dict[str, float]:
    """The metrics of several optimiser steps, for each rank one a step. A loss is one step's: a sum over ranks, a mean over steps."""
    metrics = reduce_metrics(part for rank in ranks for part in rank)
    return metrics | {name: metrics[name] / len(ranks[0]) for name in _LOSSES if name in metrics}


def summary_metrics(groups: Sequence[Group], reductions: Mapping[str, Reduction]) -> dict[str, float]:
    """The environment's own numbers over all episodes, each reduced as its spec says."""
    parts = [
        {f"env/{name}": Metric(value=value, reduction=reductions[name]) for name, value in trajectory.summary.items()}
        for group in groups
        for trajectory in group.trajectories
    ]
    return reduce_metrics(parts)


def _share(episodes: Sequence[Trajectory], condition: Callable[[Trajectory], bool]) -> float:
    return sum(bool(condition(episode)) for episode in episodes) / len(episodes)
