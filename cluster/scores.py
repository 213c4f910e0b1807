"""How good a policy is, as numbers: success with its uncertainty, pass@k, how episodes ended. Pure functions of groups."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cluster.measure import rollout_metrics, summary_metrics
from envs.metrics import Reduction
from rollout.types import Group

_RESAMPLES = 10_000
_Z = 1.959964  # the normal distribution has 95 % of its mass within so many standard deviations


def scores(sampled: Sequence[Group], greedy: Sequence[Group], reductions: Mapping[str, Reduction]) -> dict[str, float]:
    """The numbers of one evaluation, under the names that a run's metrics have.

    `eval/success` is the mean over tasks of the share of solved samples, with a 95 % interval; `eval/pass_at_k` the share of
    tasks that k samples solve at least once. How episodes ended is said of the sampled ones, or of the greedy ones if alone.
    """
    found: dict[str, float] = {}
    if sampled:
        solved = [[trajectory.solved for trajectory in group.trajectories] for group in sampled]
        shares = [sum(row) / len(row) for row in solved]
        found["eval/success"] = sum(shares) / len(shares)
        found["eval/success_low"], found["eval/success_high"] = interval(shares)
        size = len(solved[0])
        for k in [2**i for i in range(1, size.bit_length()) if 2**i < size] + [size] * (size > 1):
            found[f"eval/pass_at_{k}"] = sum(pass_at_k(sum(row), size, k) for row in solved) / len(solved)
    if greedy:
        shares = [float(group.trajectories[0].solved) for group in greedy]
        found["eval/success_greedy"] = sum(shares) / len(shares)
        found["eval/success_greedy_low"], found["eval/success_greedy_high"] = interval(shares)
    described = sampled or greedy
    rollout = rollout_metrics(described, [], 1.0)
    found |= {name: value for name, value in rollout.items() if name.startswith("end/") and value}
    found |= {name: rollout[name] for name in ("rollout/turns", "rollout/invalid_fraction")}
    return found | summary_metrics(described, reductions)


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
