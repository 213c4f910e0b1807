"""Exact expectations: every trajectory and every group of a toy, with its probability, through the code that trains.

A toy is a tabular softmax policy over a few tokens, one token a turn, small enough to enumerate. What comes out is not an
average over samples: `expected_gradient` is E[g] to rounding, so that a bias of any size shows.

Shape suffixes: `_S` states (histories), `_V` vocabulary, `_P` parameters (S * V), `_M` sampled tokens of one group.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import torch

from envs.contract import End, Task
from learner.credit import credit, initial_baseline
from learner.loss import token_weights
from learner.normalise import inverse_z
from learner.plan import Plan
from learner.types import Judgement
from rollout.types import Group, Trajectory, Turn

Actions = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A tabular policy and its world. `reward(actions)` is the reward of the last of these actions; a return of 1 is a success.

    `logits_SV` has one row a history that is not over, shortest first, in lexicographic order. An episode is over after `turns`
    actions, or after `end_token`. Example: two turns over three tokens without an end token have 1 + 3 = 4 histories, 9 paths.
    """

    name: str
    logits_SV: torch.Tensor
    turns: int
    reward: Callable[[Actions], float]
    end_token: int | None = None

    def histories(self) -> list[Actions]:
        """Every history that is not over, in the order of the rows of `logits_SV`."""
        layers: list[list[Actions]] = [[()]]
        for _ in range(self.turns - 1):
            layers.append([(*past, action) for past in layers[-1] for action in self._actions() if action != self.end_token])
        return [past for layer in layers for past in layer]

    def paths(self) -> list[Actions]:
        """Every complete episode."""
        grown = [(*past, action) for past in self.histories() for action in self._actions()]
        return [path for path in grown if len(path) == self.turns or path[-1] == self.end_token]

    def returns(self, path: Actions) -> list[float]:
        """The reward of each turn of a path."""
        return [self.reward(path[: turn + 1]) for turn in range(len(path))]

    def log_probs(self, path: Actions, logits_SV: torch.Tensor) -> torch.Tensor:
        """The log-prob of each action of a path, shape (turns of the path,), differentiable in the logits."""
        row = {past: number for number, past in enumerate(self.histories())}
        states = [row[path[:turn]] for turn in range(len(path))]
        return torch.log_softmax(logits_SV, -1)[states, list(path)]

    def _actions(self) -> range:
        return range(self.logits_SV.shape[1])


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Mean of an estimator over everything that can be sampled, shape (P,), and the trace of its covariance."""

    mean_P: torch.Tensor
    variance: float

    def multiple_of(self, gradient_P: torch.Tensor) -> tuple[float, float]:
        """`(c, residual)`: the mean is `c * gradient` plus a part orthogonal to it, relative to the length of the gradient."""
        c = float(self.mean_P @ gradient_P / (gradient_P @ gradient_P))
        return c, float((self.mean_P - c * gradient_P).norm() / gradient_P.norm())

    def cosine(self, gradient_P: torch.Tensor) -> float:
        """The cosine of the angle between the mean and the gradient."""
        return float(torch.nn.functional.cosine_similarity(self.mean_P, gradient_P, dim=0))


def expected_return(toy: Toy, logits_SV: torch.Tensor) -> torch.Tensor:
    """`J = sum over paths of P(path) * R(path)`, a scalar, differentiable in the logits."""
    terms = [toy.log_probs(path, logits_SV).sum().exp() * sum(toy.returns(path)) for path in toy.paths()]
    return torch.stack(terms).sum()


def exact_gradient(toy: Toy) -> torch.Tensor:
    """grad J with respect to the logits, shape (P,)."""
    logits_SV = toy.logits_SV.clone().requires_grad_()
    (gradient_SV,) = torch.autograd.grad(expected_return(toy, logits_SV), logits_SV)
    return gradient_SV.flatten()


def expected_gradient(
    toy: Toy,
    plan: Plan,
    *,
    group_size: int,
    generation_limit: int = 1,
    values: Mapping[Actions, float] | None = None,
    ref_logits_SV: torch.Tensor | None = None,
) -> Estimate:
    """E[g] of a plan over every group of `group_size` paths, one group an optimiser step, sampled by the current weights.

        E[g] = sum over groups of P(group) * sum_(t in group) w_t * grad log pi(a_t | h_t)

    `w` comes from the code that trains; the scores come from autograd, once a path. Groups with the same members in another
    order are enumerated once and counted by their number of orders. V is `values`, or the true one
    (`state_values`); the reference of a KL in the reward is `ref_logits_SV`, of a KL in the gradient the policy itself.
    """
    samples = sampled_gradients(
        toy, plan, group_size=group_size, generation_limit=generation_limit, values=values, ref_logits_SV=ref_logits_SV
    )
    mean_P = torch.zeros(toy.logits_SV.numel(), dtype=torch.float64)
    second_moment = 0.0
    for probability, gradient_P in samples:
        mean_P += probability * gradient_P
        second_moment += probability * float(gradient_P @ gradient_P)
    return Estimate(mean_P=mean_P, variance=second_moment - float(mean_P @ mean_P))


def sampled_gradients(
    toy: Toy,
    plan: Plan,
    *,
    group_size: int,
    generation_limit: int = 1,
    values: Mapping[Actions, float] | None = None,
    ref_logits_SV: torch.Tensor | None = None,
) -> Iterator[tuple[float, torch.Tensor]]:
    """Every gradient that one group of `group_size` paths can give, shape (P,), with its probability; they sum to 1.

    The arguments are those of `expected_gradient`.
    """
    paths = toy.paths()
    scores = [_scores(toy, path) for path in paths]
    logps = [toy.log_probs(path, toy.logits_SV) for path in paths]
    values = state_values(toy) if values is None else values
    ref_logps = [toy.log_probs(path, toy.logits_SV if ref_logits_SV is None else ref_logits_SV) for path in paths]
    judged = [
        Judgement(values_T=np.array([values[path[:turn]] for turn in range(len(path))]), ref_logp_T=ref_logp.numpy())
        for path, ref_logp in zip(paths, ref_logps, strict=True)
    ]
    siblings = [[_trajectory(toy, path, member) for member in range(group_size)] for path in paths]
    probabilities = [math.exp(logp.sum()) for logp in logps]
    for chosen in combinations_with_replacement(range(len(paths)), group_size):
        orders = math.factorial(group_size) / math.prod(math.factorial(count) for count in Counter(chosen).values())
        probability = orders * math.prod(probabilities[number] for number in chosen)
        group = Group(trajectories=tuple(siblings[number][member] for member, number in enumerate(chosen)))
        logp_M = torch.cat([logps[number] for number in chosen])
        w_M = group_weights(group, plan, logp_M, generation_limit, [judged[number] for number in chosen])
        yield probability, w_M @ torch.cat([scores[number] for number in chosen])


def state_values(toy: Toy) -> dict[Actions, float]:
    """V(h), the expected sum of the rewards that follow each history under the policy; 0 when the episode is over."""
    values: dict[Actions, float] = {}
    for past, logits_V in reversed(list(zip(toy.histories(), toy.logits_SV, strict=True))):
        after = [(*past, action) for action in range(len(logits_V))]
        probabilities = torch.softmax(logits_V, -1).tolist()
        values[past] = sum(p * (toy.reward(path) + values.get(path, 0.0)) for p, path in zip(probabilities, after, strict=True))
    return values


def group_weights(
    group: Group, plan: Plan, logp_M: torch.Tensor, generation_limit: int, judged: Sequence[Judgement] | None = None
) -> torch.Tensor:
    """The weight of each sampled token of a group that is one optimiser step and was sampled by the current weights.

    `judged` has the values and the reference's log-probs of each member, for plans that need them.
    """
    credits = credit((group,), plan, initial_baseline(plan), judged)
    scales = inverse_z((group,), plan, generation_limit)
    credit_M = torch.from_numpy(np.concatenate(credits))
    inverse_z_M = torch.cat([torch.full((len(values),), scale, dtype=torch.float64) for values, scale in zip(credits, scales, strict=True)])
    w_M, _ = token_weights(
        plan,
        credit_M=credit_M,
        inverse_z_M=inverse_z_M,
        logp_old_M=logp_M,
        logp_M=logp_M,
        ref_logp_M=logp_M if plan.kl_coef > 0 else None,
        row_M=torch.repeat_interleave(torch.tensor([len(values) for values in credits])),
    )
    return w_M


def _scores(toy: Toy, path: Actions) -> torch.Tensor:
    logits_SV = toy.logits_SV.clone().requires_grad_()
    rows = [torch.autograd.grad(logp, logits_SV, retain_graph=True)[0].flatten() for logp in toy.log_probs(path, logits_SV)]
    return torch.stack(rows)


def _trajectory(toy: Toy, path: Actions, member: int) -> Trajectory:
    logps = toy.log_probs(path, toy.logits_SV).tolist()
    turns = tuple(
        Turn(
            start=1 + number,
            token_ids=(action,),
            logp_old=(logp,),
            text=str(action),
            observation="",
            reward=reward,
            valid=True,
            first_version=0,
            last_version=0,
        )
        for number, (action, logp, reward) in enumerate(zip(path, logps, toy.returns(path), strict=True))
    )
    return Trajectory(
        task=Task(id=f"toy/{toy.name}", env="toy", split="all", level=toy.name, seed=0),
        group=0,
        member=member,
        seed=member,
        token_ids=(toy.logits_SV.shape[1], *path),
        action_mask=(0, *[1] * len(path)),
        logp_old=(0.0, *logps),
        turns=turns,
        end=End.SOLVED if sum(toy.returns(path)) >= 1 else End.OUT_OF_TURNS,
    )
