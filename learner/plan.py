"""From a config to a plan: the method's row with the overrides applied, and every combination without a meaning refused."""

from dataclasses import dataclass

from envs.errors import InputError, did_you_mean
from learner.choices import FILTERS, GROUP_BASELINES, IMITATION, Baseline, Drift, Normaliser, Returns, Scale, biases
from learner.config import AlgorithmConfig, GrowConfig, LearnerConfig
from learner.methods import METHODS, Method
from rollout.config import DeadGroupsConfig, RolloutConfig


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A row with the config's overrides applied: every choice that the weight needs, none of them open any more."""

    method: Method
    baseline: Baseline
    normaliser: Normaliser
    drift: Drift
    config: AlgorithmConfig
    kl_coef: float

    @property
    def returns(self) -> Returns:
        """Which return pays an action; it is what makes the row, so it has no override."""
        return self.method.returns

    @property
    def scale(self) -> Scale:
        """What the centred return is divided by."""
        return self.method.scale

    @property
    def needs_group(self) -> bool:
        """True if the baseline is made of the siblings' rewards."""
        return self.baseline in GROUP_BASELINES

    @property
    def needs_value(self) -> bool:
        """True if a value V(h_t) is learned beside the policy."""
        return self.baseline == "value"

    @property
    def kl_in_reward(self) -> bool:
        """True if the KL is a penalty of each token's reward, so that it is part of the credit."""
        return self.kl_coef > 0 and self.config.kl_in == "reward"

    @property
    def kl_in_gradient(self) -> bool:
        """True if the KL is a weight beside the credit."""
        return self.kl_coef > 0 and self.config.kl_in == "gradient"

    @property
    def needs_judgement(self) -> bool:
        """True if the learner must be asked (`Learner.judge`) before credit can be given."""
        return self.needs_value or self.kl_in_reward

    @property
    def imitates(self) -> bool:
        """True if the samples are data to imitate, whoever sampled them."""
        return self.returns in IMITATION

    @property
    def in_rounds(self) -> bool:
        """True if sampling and learning alternate in rounds (`learner.grow`), not in steps."""
        return self.method.data != "batch"

    @property
    def biased_by(self) -> tuple[str, ...]:
        """As `Method.biased_by`, for the choices that run."""
        whiten = "whiten" if self.config.whiten else "none"
        return biases(self.returns, self.baseline, self.scale, self.normaliser, self.drift, whiten)


def resolve(algorithm: AlgorithmConfig) -> Plan:
    """Apply the overrides of a config to its row.

    Raises `InputError` with the reason and the way out for an unknown method or a combination that has no meaning.
    """
    row = METHODS.get(algorithm.method)
    if row is None:
        raise InputError(f"unknown method {algorithm.method!r}; {did_you_mean(algorithm.method, list(METHODS))}")
    plan = Plan(
        method=row,
        baseline=algorithm.baseline or row.baseline,
        normaliser=algorithm.normaliser or row.normaliser,
        drift=algorithm.drift or row.drift,
        config=algorithm,
        kl_coef=row.kl_coef if algorithm.kl_coef is None else algorithm.kl_coef,
    )
    problem = _problem(plan) or _switch_problem(plan)
    if problem:
        raise InputError(f"method {row.name}: {problem}")
    return plan


def _problem(plan: Plan) -> str | None:
    row = plan.method
    if plan.baseline not in row.baselines:
        if plan.returns == "to_go" and plan.baseline in GROUP_BASELINES:
            return (
                f"baseline {plan.baseline} over the siblings of one turn is biased, because which siblings are left at a turn "
                "depends on the actions before it; use method alive_loo, which is unbiased"
            )
        return f"baseline {plan.baseline} is not one of {', '.join(row.baselines)}; a method with another baseline is another row"
    if plan.kl_in_gradient and plan.config.kl_estimator == "k1":
        return (
            "kl_estimator k1 has a gradient whose mean is 0 (it is the expected score), so that the KL would add noise and hold "
            "nothing; use k2 or k3, or set kl_in to reward, where k1 is right"
        )
    if plan.imitates and plan.kl_coef > 0:
        return f"kl_coef {plan.kl_coef} needs tokens that the policy sampled by itself, all of them; set kl_coef to 0"
    if plan.imitates and plan.drift != "none":
        return f"drift {plan.drift} needs the log-probs of a sampling policy, and imitation corrects for none; set drift to none"
    if plan.kl_in_reward and plan.baseline == "alive":
        return "kl_in reward pays every token for itself, and baseline alive compares whole turns; set kl_in to gradient"
    if not plan.config.count_dead_groups and plan.baseline not in ("group_mean", "leave_one_out"):
        return (
            f"count_dead_groups false leaves out groups with equal rewards, but with baseline {plan.baseline} these have credit; "
            "set it to true"
        )
    return None


def _switch_problem(plan: Plan) -> str | None:
    """A switch that is set and that nothing would read."""
    config = plan.config
    if plan.normaliser == "kept" and plan.returns not in FILTERS:
        return "normaliser kept counts what a filter keeps, and this row has no filter; use token"
    if config.whiten and not plan.needs_value:
        return f"whiten is for rows with a learned value, and the baseline is {plan.baseline}; set it to false"
    if config.gamma < 1 and plan.returns != "gae":
        return f"gamma {config.gamma} discounts the gae return, and this row's return is {plan.returns}; set gamma to 1, or use method ppo"
    if config.dual_clip is not None and plan.drift not in ("ppo_clip", "sequence"):
        return f"dual_clip {config.dual_clip} bounds the drifts ppo_clip and sequence, and the drift is {plan.drift}; set it to null"
    return None


def check(algorithm: AlgorithmConfig, *, group_size: int, max_lag: int = 0, steps_per_batch: int = 1) -> Plan:
    """Resolve a config and refuse what does not fit the run around it.

    `max_lag` is how many versions older than the trained weights a sample may be; `steps_per_batch` is minibatches x epochs.
    Either one above its default trains on samples of older weights, which a row without drift does not correct: it must be
    accepted by writing `drift: none`, so that nobody gets it unknowingly. Raises `InputError`.
    """
    plan = resolve(algorithm)
    if plan.needs_group and group_size < 2:
        raise InputError(
            f"method {plan.method.name}: group_size is {group_size}, but baseline {plan.baseline} compares siblings, and a sample "
            "compared with itself has credit 0; set group_size to 2 or more, or use method reinforce"
        )
    stale = max_lag > 0 or steps_per_batch > 1
    if stale and plan.drift == "none" and algorithm.drift is None and not plan.imitates:
        raise InputError(
            f"method {plan.method.name}: max_lag {max_lag} and {steps_per_batch} optimiser steps a batch train on samples of older "
            "weights, and this row corrects for none; set drift to ppo_clip, or write drift: none to accept the bias"
        )
    return plan


def check_grow(plan: Plan, grow: GrowConfig, learner: LearnerConfig) -> None:
    """Refuse settings of rounds that nothing would read, or that contradict one another. Raises `InputError`."""
    name = plan.method.name
    if not plan.in_rounds:
        if grow != GrowConfig():
            rows = ", ".join(row.name for row in METHODS.values() if row.data != "batch")
            raise InputError(f"method {name} learns from every batch at once, so grow means nothing to it; leave it out, or use {rows}")
        return
    if learner.minibatches > 1 or learner.epochs > 1:
        raise InputError(
            f"method {name} learns in rounds: grow.batch_episodes and grow.epochs cut and repeat its data set; set "
            f"learner.minibatches={learner.minibatches} and learner.epochs={learner.epochs} to 1"
        )
    if grow.raise_to and plan.returns != "passes":
        raise InputError(f"method {name} keeps the episodes that succeeded, so grow.raise_to has no threshold to raise; leave it out")
    rising = (plan.config.filter_threshold, *grow.raise_to)
    if list(rising) != sorted(set(rising)):
        raise InputError(
            f"grow.raise_to={list(grow.raise_to)} after algorithm.filter_threshold={rising[0]:g} does not rise; each improve pass takes "
            "a stricter filter than the one before: sort the thresholds, the first of them above filter_threshold"
        )


def check_dead_groups(plan: Plan, dead: DeadGroupsConfig, rollout: RolloutConfig) -> None:
    """Refuse remedies that nothing would read, that the row has no use for, or that no drift corrects. Raises `InputError`."""
    name = f"method {plan.method.name}"
    changed = [field for field in type(dead).model_fields if getattr(dead, field) != getattr(DeadGroupsConfig(), field)]
    if changed and plan.baseline not in ("group_mean", "leave_one_out"):
        raise InputError(
            f"{name}: dead_groups.{changed[0]} is a remedy for groups without a gradient, but with baseline {plan.baseline} groups with "
            "equal rewards have one; leave dead_groups out"
        )
    idle = [field for field in changed if field in ("resample_tasks", "temperature", "hint")]
    if idle and not dead.resample_rounds:
        raise InputError(f"dead_groups.{idle[0]} is about newly sampled groups, and resample_rounds is 0; set it to 1 or more")
    if not dead.train_with_hint and not dead.hint:
        raise InputError("dead_groups.train_with_hint=false takes a hint out of the prompt, and hint is false; set hint to true")
    foreign = [
        field
        for field, departs in (
            ("temperature", dead.temperature not in (None, rollout.temperature)),
            ("train_with_hint", not dead.train_with_hint),
            ("demonstration", dead.demonstration is not None),
        )
        if departs
    ]
    if foreign and (plan.drift == "none" or plan.kl_in_reward):
        what, way = ("kl_in reward", "kl_in to gradient") if plan.kl_in_reward else ("drift none", "drift to tis or ppo_clip")
        raise InputError(f"{name}: dead_groups.{foreign[0]} trains on samples of another policy, which {what} takes for its own; set {way}")
    if dead.demonstration is not None and plan.drift == "masked" and plan.config.mask_low > 0:
        raise InputError(
            f"{name}: drift masked leaves out tokens with a ratio below mask_low={plan.config.mask_low:g}, so that a demonstration would "
            "teach nothing that the policy finds unlikely; set drift to tis, or mask_low to 0"
        )
