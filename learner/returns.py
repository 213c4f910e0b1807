"""Returns: what an episode's rewards say of each of its sampled tokens, before any baseline.

Shape suffix: `_T` the sampled tokens of one episode in order. What a learned V has to predict is the same return.
"""

import numpy as np

from envs.errors import InputError
from learner.gae import gae
from learner.kl import kl_penalty
from learner.plan import Plan
from learner.types import FloatArray, Judgement
from rollout.types import Trajectory


def token_returns(trajectory: Trajectory, plan: Plan, judged: Judgement | None = None) -> FloatArray:
    """The return of each sampled token of one episode, shape (T,), float64.

        one       1                                 reward   R, the sum of the rewards
        passes    1 if R >= filter_threshold        to_go    the rewards from this token on
        success   1 if the episode was solved       gae      A_t + V_t, the lambda-return (see `learner.gae`)

    The reward of a turn arrives at its last token; a KL in the reward is a penalty at every token. Raises `InputError` if the plan
    needs values or reference log-probs and `judged` does not have them.
    """
    match plan.returns:
        case "one":
            return np.ones(trajectory.sampled_tokens)
        case "passes" | "success":
            return np.full(trajectory.sampled_tokens, float(keeps(plan, trajectory)))
        case "reward":
            assert trajectory.reward is not None, "a group holds scored trajectories only"
            penalty = float(_penalties(trajectory, plan, judged).sum()) if plan.kl_in_reward else 0.0
            return np.full(trajectory.sampled_tokens, trajectory.reward + penalty)
        case "to_go":
            return np.cumsum(_token_rewards(trajectory, plan, judged)[::-1])[::-1].copy()
        case "gae":
            values_T = values_of(trajectory, plan, judged)
            rewards_T = _token_rewards(trajectory, plan, judged)
            return values_T + gae(rewards_T, values_T, gamma=plan.config.gamma, lam=plan.config.gae_lambda)


def keeps(plan: Plan, trajectory: Trajectory) -> bool:
    """Whether the filter of a filtered plan lets this episode through."""
    if plan.returns == "success":
        return trajectory.solved
    assert plan.returns == "passes" and trajectory.reward is not None, "only a filtered plan asks, and only for scored episodes"
    return trajectory.reward >= plan.config.filter_threshold


def values_of(trajectory: Trajectory, plan: Plan, judged: Judgement | None) -> FloatArray:
    """V of each sampled token. Raises `InputError` if it is missing."""
    return _present(None if judged is None else judged.values_T, trajectory, plan, "values of its sampled tokens")


def _token_rewards(trajectory: Trajectory, plan: Plan, judged: Judgement | None) -> FloatArray:
    rewards_T = _penalties(trajectory, plan, judged) if plan.kl_in_reward else np.zeros(trajectory.sampled_tokens)
    ends = np.cumsum([len(turn.token_ids) for turn in trajectory.turns]) - 1
    # A turn without a token pays the one before it; added, not assigned, because both rewards count.
    np.add.at(rewards_T, np.maximum(ends, 0), [turn.reward for turn in trajectory.turns])
    return rewards_T


def _penalties(trajectory: Trajectory, plan: Plan, judged: Judgement | None) -> FloatArray:
    ref_logp_T = _present(None if judged is None else judged.ref_logp_T, trajectory, plan, "reference log-probs of its sampled tokens")
    logp_old_T = np.array([logp for turn in trajectory.turns for logp in turn.logp_old])
    return kl_penalty(plan.config.kl_estimator, plan.kl_coef, logp_old_T=logp_old_T, ref_logp_T=ref_logp_T)


def _present(values_T: FloatArray | None, trajectory: Trajectory, plan: Plan, what: str) -> FloatArray:
    if values_T is None:
        raise InputError(
            f"method {plan.method.name}: task {trajectory.task.id}, group {trajectory.group}, member {trajectory.member} has no {what}; "
            "ask Learner.judge for them before the credit is computed"
        )
    assert values_T.shape == (trajectory.sampled_tokens,), f"{values_T.shape} {what}, of which there are {trajectory.sampled_tokens}"
    return values_T
