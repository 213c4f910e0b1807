"""Generalised advantage estimation over the sampled tokens of one episode.

Shape suffix: `_T` the sampled tokens of one episode in order. Tokens of prompt and observations are not in it: the state
after one action is the state before the next one, whatever the environment said in between.
"""

import numpy as np

from learner.types import FloatArray


def gae(rewards_T: FloatArray, values_T: FloatArray, *, gamma: float, lam: float) -> FloatArray:
    """The advantage of each sampled token, shape (T,), by the recursion from the last to the first.

        A_t = delta_t + gamma * lam * A_(t+1)        delta_t = r_t + gamma * V_(t+1) - V_t        V = A = 0 after the last token

    Equal to `sum_k (gamma * lam)^k delta_(t+k)`: Schulman et al. 2016, equation 16. An episode that ran out of turns or tokens
    ends like any other: its budget is part of the task. Degenerates: with gamma = lam = 1 it is the rewards to go minus V_t.
    """
    assert rewards_T.shape == values_T.shape, f"{rewards_T.shape} rewards, {values_T.shape} values"
    advantages_T = np.zeros_like(rewards_T)
    advantage = next_value = 0.0
    for t in reversed(range(len(rewards_T))):
        delta = rewards_T[t] + gamma * next_value - values_T[t]
        advantage = delta + gamma * lam * advantage
        advantages_T[t] = advantage
        next_value = values_T[t]
    return advantages_T
