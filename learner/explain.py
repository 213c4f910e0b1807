"""The method table in words: what `pickaxe explain` prints is generated from the plan that runs."""

from learner.methods import Method
from learner.plan import Plan

_RETURNS = {
    "one": ("1", "the same for every sampled token"),
    "reward": ("R_i", "the reward of the episode"),
    "to_go": ("R_it", "the rewards from turn t on"),
}
_BASELINES = {
    "none": ("", "no baseline"),
    "constant": (" - {b:g}", "minus a constant"),
    "moving_average": (" - b", "minus the moving average of earlier rewards, decay {decay:g}, start {b:g}"),
    "group_mean": (" - mean_j R_j", "minus the mean over the group"),
    "leave_one_out": (" - mean_(j != i) R_j", "minus the mean over the other siblings"),
    "alive": (" - mean_(j != i, alive at t) R_jt", "minus the mean over the other siblings that still play at turn t (0 if none does)"),
}
_NORMALISERS = {
    "constant": ("N * C", "N episodes of the optimiser step, C = {limit}"),
    "token": ("sum_i |y_i|", "all sampled tokens of the optimiser step"),
    "own_length": ("groups * G * |y_i|", "mean over own tokens, then over the group, then over groups"),
    "group": ("groups * G", "sum over tokens, mean over the group, then over groups"),
}
_KL = {
    "k2": ("-(log pi - log pi_ref)", "descends KL(pi || pi_ref)"),
    "k3": ("(pi_ref / pi - 1)", "descends the sampled k3, whose expected gradient is that of KL(pi_ref || pi)"),
}


def formula(plan: Plan) -> str:
    """The objective of a plan in symbols and words, a line a factor, in plain ASCII.

    i, j number siblings, t turns and their tokens; every factor is a constant of the gradient.
    """
    config = plan.config
    clipped = plan.drift == "ppo_clip"
    value, value_words = _RETURNS[plan.returns]
    base, base_words = _BASELINES[plan.baseline]
    numbers = {"b": config.baseline_constant, "decay": config.baseline_decay}
    centred, words = value + base.format(**numbers), f"{value_words}, {base_words.format(**numbers)}"
    if plan.scale == "std":
        centred, words = f"({centred}) / std_j R_j", f"{words}, divided by the {config.std} std of the group"
    z, z_words = _NORMALISERS[plan.normaliser]
    weight = "credit_it" + " * drift_it" * clipped
    if plan.kl_coef > 0:
        weight = f"({weight} + kl_it)"
    lines = [
        ("gradient", "sum_it w_it * grad log pi(a_it | h_it)", ""),
        ("w_it", f"{weight} / Z", ""),
        ("credit_it", centred, words),
    ]
    if clipped:
        low, high = 1 - config.clip_low, 1 + config.clip_high
        lines.append(("drift_it", "pi / pi_old", f"0 where credit > 0 and the ratio > {high:g}, or credit < 0 and the ratio < {low:g}"))
    if plan.kl_coef > 0:
        symbol, kl_words = _KL[config.kl_estimator]
        lines.append(("kl_it", f"{plan.kl_coef:g} * {symbol}", kl_words))
    limit = config.generation_limit or "the most tokens that an episode can sample"
    dead = "" if config.count_dead_groups else "; groups with equal rewards are not counted"
    lines.append(("Z", z, z_words.format(limit=limit) + dead))
    if config.entropy_coef > 0:
        lines.append(("bonus", f"{config.entropy_coef:g} * sum_it H(pi(. | h_it)) / Z", "entropy, in nats"))
    lines += [("biased by", "", reason) for reason in plan.biased_by]
    return "\n".join(f"{name:<9} {'=' if symbol else ':'} {'   # '.join(filter(None, (symbol, text)))}" for name, symbol, text in lines)


def describe(method: Method) -> str:
    """A row in a paragraph: what it does, where it comes from, when it says nothing, which baselines it takes."""
    biased = "; ".join(method.biased_by) or "nothing: its expected gradient is grad J"
    return (
        f"{method.name}: {method.summary}.\nSource: {method.source}.\nDegenerates when {method.degenerates_when}.\n"
        f"Biased by {biased}.\nBaselines: {', '.join(method.baselines)}."
    )
