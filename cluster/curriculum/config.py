"""Settings of the curriculum: which training tasks a step takes."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from envs.contract import EnvSpec
from envs.errors import InputError, did_you_mean

_READ_BY = {
    "fixed": {"counts"},
    "threshold": {"levels", "window", "advance_at", "keep"},
    "band": {"levels", "window", "low", "high", "explore"},
}


class CurriculumConfig(BaseModel):
    """Which training tasks a step takes; demonstrations and evaluations take the environment's own. Success is the share solved."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["fixed", "threshold", "band"] = Field(
        "fixed",
        description="fixed: the environment's own mixture, or `counts`; threshold: climbs the levels one by one; "
        "band: prefers tasks that some siblings solve and some do not.",
    )
    counts: dict[str, Annotated[int, Field(ge=1)]] | None = Field(
        None, description="fixed: groups of each level in every step, such as {L1: 4, L2: 12}; None leaves it to the environment's weights."
    )
    levels: tuple[str, ...] | None = Field(
        None, description="threshold, band: the levels to train on, easiest first; None takes all that the environment trains on."
    )
    window: int = Field(32, ge=1, description="threshold, band: the newest groups of a level that its success is the mean of.")
    advance_at: float = Field(0.8, gt=0, le=1, description="threshold: success over a whole window at which the next level begins.")
    keep: float = Field(0.2, ge=0, lt=1, description="threshold: share of the groups that play earlier levels, each in turn.")
    low: float = Field(0.1, ge=0, le=1, description="band: lowest success of the tasks that are preferred.")
    high: float = Field(0.8, ge=0, le=1, description="band: highest success of the tasks that are preferred.")
    explore: float = Field(
        0.2, ge=0, lt=1, description="band: share of the groups that play any level, in turn, and any task, so that estimates stay fresh."
    )


def check_curriculum(config: CurriculumConfig, spec: EnvSpec, params: BaseModel, groups_per_step: int) -> None:
    """Refuse settings that nothing would read, levels that there are not, and counts that do not fill a step. Raises `InputError`."""
    kind, default = config.kind, CurriculumConfig()
    for name in CurriculumConfig.model_fields:
        if name != "kind" and name not in _READ_BY[kind] and getattr(config, name) != getattr(default, name):
            kinds = " or ".join(other for other, read in _READ_BY.items() if name in read)
            raise InputError(f"curriculum.{name} means nothing to curriculum.kind={kind}; leave it out, or set curriculum.kind={kinds}")
    if config.low >= config.high:
        raise InputError(f"curriculum.low={config.low:g} is not below curriculum.high={config.high:g}; no task could lie between them")
    named = config.counts if config.counts is not None else config.levels
    if spec.levels is None:
        if kind == "threshold" or named is not None:
            what = "kind=threshold" if kind == "threshold" else "counts" if config.counts is not None else "levels"
            raise InputError(
                f"curriculum.{what} needs levels, and all tasks of {spec.name} have one (its EnvSpec.levels is None); "
                "use curriculum.kind=band, which goes by task, or leave curriculum out"
            )
        return
    known = spec.levels(params)
    for level in named or ():
        if level not in known:
            raise InputError(
                f"curriculum: {spec.name} trains on no level {level!r} with these env.params: {did_you_mean(level, list(known))}"
            )
    if config.counts is not None and (total := sum(config.counts.values())) != groups_per_step:
        raise InputError(f"curriculum.counts adds up to {total}, but rollout.groups_per_step={groups_per_step}; make them equal")
    levels = known if config.levels is None else config.levels
    if len({*levels}) < len(levels):
        raise InputError(f"curriculum.levels={list(levels)} names a level twice; name each once, easiest first")
    if kind == "threshold" and len(levels) < 2:
        raise InputError(
            f"curriculum.kind=threshold climbs from level to level, and there is {', '.join(levels) or 'none'} only; name more in "
            "curriculum.levels and train on them in env.params, or leave curriculum out"
        )
    if kind == "band" and not levels:
        raise InputError("curriculum.levels is empty; name the levels to train on, or leave it out for all")
