"""Real trajectories and groups from a few numbers, and a bigram policy to differentiate through.

Layout: the prompt, then for every turn the sampled action followed by the observation; nothing follows the last action.
"""

import random
from collections.abc import Sequence

import torch

from envs.contract import End, Task
from learner.batch import optimizer_steps
from learner.config import AlgorithmConfig
from learner.credit import initial_baseline
from learner.loss import entropy_loss, policy_loss, token_weights
from learner.plan import Plan, resolve
from learner.types import Judgement, MicroBatch
from rollout.types import Group, Trajectory, Turn

VOCABULARY = 12


def plan_of(method: str, **overrides: object) -> Plan:
    return resolve(AlgorithmConfig.model_validate({"method": method, **overrides}))


def trajectory(
    actions: Sequence[Sequence[int]],
    rewards: Sequence[float],
    *,
    group: int = 0,
    member: int = 0,
    prompt: Sequence[int] = (5, 6, 7),
    observations: Sequence[Sequence[int]] | None = None,
    logp_old: Sequence[float] | None = None,
    version: int = 0,
) -> Trajectory:
    """`logp_old` lists the log-probs of the sampled tokens in order, -1.0 each by default; observations are `8 9` by default."""
    observations = observations if observations is not None else [(8, 9)] * (len(actions) - 1)
    remaining = list(logp_old) if logp_old is not None else [-1.0] * sum(map(len, actions))
    tokens, mask, logps, turns = list(prompt), [0] * len(prompt), [0.0] * len(prompt), []
    for number, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
        sampled, remaining = remaining[: len(action)], remaining[len(action) :]
        turns.append(
            Turn(
                start=len(tokens),
                token_ids=tuple(action),
                logp_old=tuple(sampled),
                text="",
                observation="",
                reward=reward,
                valid=True,
                first_version=version,
                last_version=version,
            )
        )
        observation = observations[number] if number < len(observations) else ()
        tokens += [*action, *observation]
        mask += [1] * len(action) + [0] * len(observation)
        logps += [*sampled, *[0.0] * len(observation)]
    return Trajectory(
        task=Task(id=f"toy/{group}", env="toy", split="all", level="0", seed=0),
        group=group,
        member=member,
        seed=member,
        token_ids=tuple(tokens),
        action_mask=tuple(mask),
        logp_old=tuple(logps),
        turns=tuple(turns),
        end=End.FAILED,
    )


def one_turn_group(rewards: Sequence[float], *, group: int = 0, tokens: int = 2) -> Group:
    """Siblings that act once, with `tokens` tokens each."""
    return Group(trajectories=tuple(trajectory([[1] * tokens], [r], group=group, member=m) for m, r in enumerate(rewards)))


def ragged_groups(seed: int, *, old_VV: torch.Tensor, groups: int = 4, size: int = 4, version: int = 0) -> list[Group]:
    """Groups of episodes of 1-3 turns of 1-4 tokens with observations of 0-3 tokens between; the last group is dead.

    The behaviour log-probs are those of the bigram policy `old_VV`.
    """
    draw = random.Random(seed)
    built = []
    for number in range(groups):
        members = []
        for member in range(size):
            turns = draw.randint(1, 3)
            actions = [[draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 4))] for _ in range(turns)]
            observations = [[draw.randrange(VOCABULARY) for _ in range(draw.randint(0, 3))] for _ in range(turns)]
            rewards = [0.25 * draw.randrange(4) for _ in range(turns - 1)] + [float(member % 2)]
            if number == groups - 1:
                rewards = [0.0] * (turns - 1) + [0.7]
            bare = trajectory(actions, rewards, group=number, member=member, observations=observations)
            logps = bigram_logps(old_VV, bare).tolist()
            members.append(
                trajectory(actions, rewards, group=number, member=member, observations=observations, logp_old=logps, version=version)
            )
        built.append(Group(trajectories=tuple(members)))
    return built


def bigram_logps(logits_VV: torch.Tensor, episode: Trajectory) -> torch.Tensor:
    """Log-probs of the sampled tokens of one episode, each given the token before it; shape (sampled tokens,)."""
    log_probs_VV = torch.log_softmax(logits_VV, -1)
    positions = [t for t, sampled in enumerate(episode.action_mask) if sampled]
    return torch.stack([log_probs_VV[episode.token_ids[t - 1], episode.token_ids[t]] for t in positions])


def bigram_entropies(logits_VV: torch.Tensor, episode: Trajectory) -> torch.Tensor:
    """Entropy of the next-token distribution at each sampled token of one episode."""
    log_probs_VV = torch.log_softmax(logits_VV, -1)
    positions = [t for t, sampled in enumerate(episode.action_mask) if sampled]
    return torch.stack([-(log_probs_VV[episode.token_ids[t - 1]].exp() * log_probs_VV[episode.token_ids[t - 1]]).sum() for t in positions])


def micro_batches(
    groups: Sequence[Group],
    plan: Plan,
    *,
    ranks: int = 1,
    budget: int = 10_000,
    limit: int = 12,
    judged: Sequence[Judgement] | None = None,
) -> list[MicroBatch]:
    """All micro-batches of the one optimiser step that `groups` make."""
    (step,), _, _ = optimizer_steps(
        groups,
        plan,
        ranks=ranks,
        micro_batch_tokens=budget,
        generation_limit=limit,
        baseline_state=initial_baseline(plan),
        current_version=0,
        judged=judged,
    )
    return [part for parts in step.micro_batches for part in parts]


def learner_gradient(
    groups: Sequence[Group], plan: Plan, logits_VV: torch.Tensor, *, ref_VV: torch.Tensor | None = None, **split: int
) -> torch.Tensor:
    """The gradient that the learner descends, for a bigram policy, summed over ranks and micro-batches."""
    logits_VV = logits_VV.clone().requires_grad_()
    for part in micro_batches(groups, plan, **split):
        logp_M = _sampled(torch.log_softmax(logits_VV, -1), part)
        w_M, _ = token_weights(
            plan,
            credit_M=part.credit_BT[part.mask_BT],
            inverse_z_M=part.inverse_z_BT[part.mask_BT],
            logp_old_M=part.logp_old_BT[part.mask_BT],
            logp_M=logp_M,
            ref_logp_M=None if ref_VV is None else _sampled(torch.log_softmax(ref_VV, -1), part),
            row_M=part.mask_BT.nonzero()[:, 0],
        )
        loss = policy_loss(w_M, logp_M)
        if plan.config.entropy_coef > 0:
            log_probs_VV = torch.log_softmax(logits_VV, -1)
            entropy_V = -(log_probs_VV.exp() * log_probs_VV).sum(-1)
            entropy_M = entropy_V[part.token_ids_BT[:, :-1][part.mask_BT[:, 1:]]]
            loss = loss + entropy_loss(plan.config.entropy_coef, entropy_M=entropy_M, inverse_z_M=part.inverse_z_BT[part.mask_BT])
        loss.backward()
    assert logits_VV.grad is not None
    return logits_VV.grad


def _sampled(log_probs_VV: torch.Tensor, part: MicroBatch) -> torch.Tensor:
    before, after = part.token_ids_BT[:, :-1], part.token_ids_BT[:, 1:]
    return log_probs_VV[before, after][part.mask_BT[:, 1:]]
