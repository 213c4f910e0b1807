"""The method table in words: what `pickaxe explain` prints is generated from the plan that runs."""

from learner.methods import Method
from learner.plan import Plan

_RETURNS = {
    "one": ("1", "the same for every sampled token"),
    "passes": ("1[R_i >= {threshold:g}]", "1 if the reward of the episode passes the filter, else 0"),
    "success": ("1[success_i]", "1 if the episode succeeded, else 0"),
    "reward": ("R_i", "the reward of the episode"),
    "to_go": ("R_it", "the rewards from turn t on"),
    "gae": ("G_it", "the lambda-return of rewards and values, gamma {gamma:g}, lambda {lam:g}, over sampled tokens"),
}
_BASELINES = {
    "none": ("", "no baseline"),
    "constant": (" - {b:g}", "minus a constant"),
    "moving_average": (" - b", "minus the moving average of earlier rewards, decay {decay:g}, start {b:g}"),
    "value": (" - V(h_it)", "minus the learned value of the history ({kind})"),
    "group_mean": (" - mean_j R_j", "minus the mean over the group"),
    "leave_one_out": (" - mean_(j != i) R_j", "minus the mean over the other siblings"),
    "alive": (" - mean_(j != i, alive at t) R_jt", "minus the mean over the other siblings that still play at turn t (0 if none does)"),
}
_NORMALISERS = {
    "constant": ("N * C", "N episodes of the optimiser step, C = {limit}"),
    "token": ("sum_i |y_i|", "all sampled tokens of the optimiser step"),
    "own_length": ("groups * G * |y_i|", "mean over own tokens, then over the group, then over groups"),
    "kept": ("sum_kept |y_i|", "the sampled tokens of the episodes that are kept, over the optimiser step"),
    "group": ("groups * G", "sum over tokens, mean over the group, then over groups"),
}
_DRIFTS = {
    "ppo_clip": ("pi / pi_old", "0 where credit > 0 and the ratio > {high:g}, or credit < 0 and the ratio < {low:g}{dual}"),
    "tis": ("min(pi / pi_old, {cap:g})", "truncated importance sampling"),
    "masked": ("pi / pi_old", "0 where the ratio is below {mask_low:g} or above {mask_high:g}"),
    "sequence": (
        "exp(mean_t log(pi / pi_old))",
        "one ratio an episode; 0 where credit > 0 and it is > {high:g}, or credit < 0 and it is < {low:g}{dual}",
    ),
    "cispo": ("clip(pi / pi_old, {low:g}, {high:g})", "no token loses its gradient"),
}
_DATA = {
    "grown": "the samples of all rounds that pass the filter; grow.epochs passes over them after every grow.steps steps",
    "newest": "the newest round's samples that pass the filter; the policy starts again from the one before RL",
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
    corrected = plan.drift != "none"
    value, value_words = _RETURNS[plan.returns]
    base, base_words = _BASELINES[plan.baseline]
    numbers = _numbers(plan)
    centred, words = (value + base).format(**numbers), f"{value_words}, {base_words}".format(**numbers)
    if plan.scale == "std":
        centred, words = f"({centred}) / std_j R_j", f"{words}, divided by the {config.std} std of the group"
    if config.whiten:
        centred, words = f"whiten({centred})", f"{words}, shifted and scaled to mean 0 and std 1 over the batch"
    z, z_words = _NORMALISERS[plan.normaliser]
    weight = "credit_it" + " * drift_it" * corrected
    if plan.kl_in_gradient:
        weight = f"({weight} + kl_it)"
    lines = [
        ("gradient", "sum_it w_it * grad log pi(a_it | h_it)", ""),
        ("w_it", f"{weight} / Z", ""),
        ("credit_it", centred, words),
    ]
    falls = ", falling to 0 over the run" if config.regulariser_schedule == "linear" else ""
    if plan.kl_in_reward:
        k1 = "its gradient is that of KL(pi || pi_ref) over episodes"
        kl_words = k1 if config.kl_estimator == "k1" else "its gradient is not that of the KL that it estimates; k1's is"
        lines.append(("reward", f"r_it - {plan.kl_coef:g} * {config.kl_estimator}_it", f"a penalty at every token; {kl_words}"))
    if corrected:
        symbol, drift_words = _DRIFTS[plan.drift]
        lines.append(("drift_it", symbol.format(**numbers), drift_words.format(**numbers)))
    if plan.kl_in_gradient:
        symbol, kl_words = _KL[config.kl_estimator]
        lines.append(("kl_it", f"{plan.kl_coef:g} * {symbol}", kl_words + falls))
    limit = config.generation_limit or "the most tokens that an episode can sample"
    dead = "" if config.count_dead_groups else "; groups with equal rewards are not counted"
    lines.append(("Z", z, z_words.format(limit=limit) + dead))
    if plan.in_rounds:
        lines.append(("data", plan.method.data, _DATA[plan.method.data]))
    if config.entropy_coef > 0:
        lines.append(("bonus", f"{config.entropy_coef:g} * sum_it H(pi(. | h_it)) / Z", f"entropy, in nats{falls}"))
    if plan.needs_value:
        clip = "" if config.value_clip is None else f", changes beyond {config.value_clip:g} clipped"
        target = value.format(**numbers)
        lines.append(("value", f"{config.value_coef:g} * sum_it (V(h_it) - {target})^2 / 2 / Z", f"the loss of V, {config.value}{clip}"))
    lines += [("biased by", "", reason) for reason in plan.biased_by or ("nothing: the expected gradient of the credit is grad J",)]
    return "\n".join(f"{name:<9} {'=' if symbol else ':'} {'   # '.join(filter(None, (symbol, text)))}" for name, symbol, text in lines)


def _numbers(plan: Plan) -> dict[str, float | str]:
    """The config's numbers under the names that the tables above use."""
    config = plan.config
    return {
        "b": config.baseline_constant,
        "decay": config.baseline_decay,
        "threshold": config.filter_threshold,
        "gamma": config.gamma,
        "lam": config.gae_lambda,
        "kind": config.value,
        "low": 1 - config.clip_low,
        "high": 1 + config.clip_high,
        "dual": "" if config.dual_clip is None else f" or > {config.dual_clip:g}",
        "cap": config.tis_cap,
        "mask_low": config.mask_low,
        "mask_high": config.mask_high,
    }


def describe(method: Method) -> str:
    """A row in a paragraph: what it does, where it comes from, when it says nothing, which baselines it takes.

    What it is biased by depends on the choices that run, and is said by `formula`.
    """
    return (
        f"{method.name}: {method.summary}.\nSource: {method.source}.\nDegenerates when {method.degenerates_when}.\n"
        f"Baselines: {', '.join(method.baselines)}."
    )
