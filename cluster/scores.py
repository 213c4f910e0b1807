"""How good a policy is, as numbers: success with its uncertainty, by level, pass@k, how episodes ended. Pure functions of groups."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cluster.measure import rollout_metrics, summary_metrics
from envs.metrics import Reduction
from rollout.play import GroupFailure
from rollout.types import Group

_RESAMPLES = 10_000
_Z = 1.959964  # the normal distribution has 95 % of its mass within so many standard deviations


def scores(sampled: Sequence[Group], greedy: Sequence[Group], reductions: Mapping[str, Reduction]) -> dict[str, float]:
    """The numbers of one evaluation, under the names that a run's metrics have: those of `success_scores`, and how episodes went.

    How they went is said of the sampled ones, or of the greedy ones if alone.
    """
    found = success_scores(sampled, greedy)
    described = sampled or greedy
    rollout = rollout_metrics(described, [], 1.0)
    found |= {name: value for name, value in rollout.items() if name.startswith("end/") and value}
    found |= {name: rollout[name] for name in ("rollout/turns", "rollout/invalid_fraction")}
    return found | summary_metrics(described, reductions)


def eval_metrics(sampled: Sequence[Group], greedy: Sequence[Group], failures: Sequence[GroupFailure]) -> dict[str, float]:
    """`success_scores` of the tasks that could be played, and where they are of several levels, of each level: `eval/success/L1`.

    What nothing was played for is left out, because a failed environment is not a success of 0; `eval/failed` counts its groups.
    """
    found = success_scores(sampled, greedy) | {"eval/failed": float(len(failures))}
    levels = levels_of(sampled, greedy)
    for level in levels if len(levels) > 1 else ():
        found |= {f"{name}/{level}": value for name, value in success_scores(of_level(sampled, level), of_level(greedy, level)).items()}
    return found


def success_scores(sampled: Sequence[Group], greedy: Sequence[Group]) -> dict[str, float]:
    """`eval/success` (pass@1), the mean over tasks of the share of solved samples; `eval/pass_at_k`, the share of tasks that k samples
    solve at least once; `eval/success_greedy`. Each has a 95 % interval over tasks, NAME_low and NAME_high."""
    by_task: dict[str, list[float]] = {}
    if sampled:
        solved, size = [sum(episode.solved for episode in group.trajectories) for group in sampled], len(sampled[0].trajectories)
        by_task["eval/success"] = [count / size for count in solved]
        for k in [2**i for i in range(1, size.bit_length()) if 2**i < size] + [size] * (size > 1):
            by_task[f"eval/pass_at_{k}"] = [pass_at_k(count, size, k) for count in solved]
    if greedy:
        by_task["eval/success_greedy"] = [float(group.trajectories[0].solved) for group in greedy]
    found: dict[str, float] = {}
    for name, shares in by_task.items():
        found[name] = sum(shares) / len(shares)
        found[f"{name}_low"], found[f"{name}_high"] = interval(shares)
    return found


def levels_of(*groups: Sequence[Group]) -> list[str]:
    """The levels of the groups' tasks, in the order in which they come: an environment gives its easiest first."""
    return list(dict.fromkeys(group.task.level for part in groups for group in part))


def of_level(groups: Sequence[Group], level: str) -> list[Group]:
    """The groups whose tasks are of the level."""
    return [group for group in groups if group.task.level == level]


def interval(shares: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the mean over tasks, which are the independent draws; samples of one task are not.

    The bootstrap over tasks; where all tasks agree it would have no width, so there it is Wilson's, with one draw a task.
    """
    if max(shares) > min(shares):
        values = np.asarray(shares)
        picks = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
        low, high = np.quantile(values[picks].mean(axis=1), (0.025, 0.975))
        return float(low), float(high)
    return wilson(sum(shares) / len(shares), len(shares))


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion (Wilson 1927): it has a width at 0 and at 1 too.

    >>> [round(bound, 3) for bound in wilson(1.0, 16)]
    [0.806, 1.0]
    """
    spread = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    centre, scale = share + _Z**2 / (2 * n), 1 + _Z**2 / n
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)


def pass_at_k(solved: int, n: int, k: int) -> float:
    """The chance that k of n samples, drawn without replacement, contain a solved one (Chen et al. 2021, equation 1).

    >>> pass_at_k(1, 4, 2)
    0.5
    """
    return 1 - math.comb(n - solved, k) / math.comb(n, k)
