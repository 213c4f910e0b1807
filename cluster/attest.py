"""Attestation: after every weight push, prove that the generators really are the learner, or stop.

A generator that silently keeps old weights, or a mixture of old and new ones, trains without an error and learns nothing
that is true. So the log-probs of a fixed probe are computed by both sides after each push and must be equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.actors import Cluster, RunError, wait
from rollout.types import Group

Scores = Sequence[Sequence[float]]
_MOVED = 1e-5


class AttestationError(RunError):
    """The generators' log-probs are not the learner's."""


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """What one attestation saw: the largest |difference|, how far the learner moved, and both sides' log-probs of the probe."""

    version: int
    max_abs_diff: float
    moved: float
    learner: Scores
    generators: Sequence[Scores]


def attest(cluster: Cluster, probe: Sequence[tuple[int, ...]], version: int, before: Attestation | None) -> Attestation:
    """Compare both sides on the probe. Raises `AttestationError` if they differ by more than `cluster.probe_tolerance`,
    or if a generator's log-probs stayed bit for bit what they were although the learner's moved."""
    timeout_s = cluster.config.cluster.step_timeout_s
    scored = [generator.score.remote(probe) for generator in cluster.generators]
    learner = cluster.learn(lambda rank: rank.score.remote(probe), "scoring the probe on the learner")[0]
    generators = wait(scored, timeout_s, "scoring the probe on the generators")
    moved = max_abs_diff(learner, before.learner) if before else 0.0
    result = Attestation(
        version=version,
        max_abs_diff=max(max_abs_diff(learner, scores) for scores in generators),
        moved=moved,
        learner=learner,
        generators=generators,
    )
    check(result, before, cluster.config.cluster.probe_tolerance)
    return result


def check(now: Attestation, before: Attestation | None, tolerance: float) -> None:
    """Raise `AttestationError` unless `now` proves that every generator has the learner's weights."""
    for number, scores in enumerate(now.generators):
        gap = max_abs_diff(now.learner, scores)
        # The first of the two, because it is the sharper diagnosis of what would often fail the second as well.
        if before is not None and now.moved > _MOVED and max_abs_diff(scores, before.generators[number]) == 0.0:
            raise AttestationError(
                f"generator {number} kept its old weights: after push {now.version} its log-probs on the probe are bit for bit those "
                f"of push {before.version}, but the learner's moved by {now.moved:.3g}"
            )
        if not gap <= tolerance:  # also true for NaN
            raise AttestationError(
                f"generator {number} is not the learner: after push {now.version} their log-probs on the probe differ by {gap:.3g}, "
                f"expected at most cluster.probe_tolerance={tolerance:g}. The push was corrupted, or the generator kept old weights; "
                "samples from here on would train another policy. (In bfloat16 a gap of 5e-3 is normal: raise the tolerance.)"
            )


def check_versions(groups: Sequence[Group], version: int) -> None:
    """In the synchronous loop every turn is sampled by the current weights; raises `AttestationError` if a generator says otherwise."""
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    stale = [turn for turn in turns if (turn.first_version, turn.last_version) != (version, version)]
    if stale:
        raise AttestationError(
            f"{len(stale)} of {len(turns)} turns of this step were not sampled by version {version} of the weights but by, for example, "
            f"{stale[0].first_version}..{stale[0].last_version}; expected no other with cluster.max_lag=0. A generator missed a push"
        )


def check_gap(metrics: Mapping[str, float], limit: float) -> None:
    """Sampler and learner must give the tokens of the current weights the same log-probs, or every ratio is wrong.

    Compared are the `sync/compared_tokens` tokens of a batch's first optimiser step whose whole turn the current weights sampled. With
    `cluster.max_lag` above 0, or if no token of that step carries a gradient, there may be none: then there is no gap to check.
    """
    assert ("sync/sampler_learner_gap" in metrics) == (metrics["sync/compared_tokens"] > 0), "the learner lost its comparison"
    gap = metrics.get("sync/sampler_learner_gap")
    if gap is not None and not gap <= limit:  # also true for NaN
        raise AttestationError(
            f"the sampler's and the learner's log-probs of the same tokens and weights differ by {gap:.3g}; expected at most "
            f"learner.max_logprob_gap={limit:g}. The two sides compute different policies; in bfloat16 raise the limit to 0.05"
        )


def max_abs_diff(a: Scores, b: Scores) -> float:
    """The largest |a - b| over all rows and tokens; NaN if either side has one."""
    diffs = [abs(x - y) for row_a, row_b in zip(a, b, strict=True) for x, y in zip(row_a, row_b, strict=True)]
    return max(diffs) if all(diff == diff for diff in diffs) else float("nan")
