"""Four episodes of number search as chat tokens, and the weight that every method gives each of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.console import Group as Lines
from rich.text import Text

from cluster.config import RunConfig
from cluster.prepare import policy_tokenizer
from envs.contract import Player, Task
from envs.number_search import SPEC, NumberSearchParams, tasks
from envs.number_search_exact import plausible_success
from learner.config import AlgorithmConfig
from learner.enumerate import group_weights
from learner.plan import Plan, resolve
from learner.types import FloatArray, Judgement
from rollout.chat import ChatEncoder
from rollout.play import demonstrate
from rollout.tiny_tokenizer import TURN_END, TURN_START
from rollout.types import Group, Trajectory

SECRET = 11
GUESSES = ((8, 12, 10, 11), (4, 8, 12, 11), (16, 8, 9, 10), (1, 2, 3, 4))
"""Four episodes of the secret 11: two that find it with the last guess, two that do not."""
_SHORT = {TURN_START: "<", TURN_END: ">"}


class _Replay:
    """A scripted player that makes given guesses whatever it is told."""

    def __init__(self, guesses: Sequence[int]) -> None:
        self._guesses = iter(guesses)

    def act(self, observation: str | None) -> str:
        return f"guess({next(self._guesses)})"


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """One group of siblings with the text of each token; `generation_limit` is C, the most tokens that an episode could sample."""

    group: Group
    pieces: tuple[tuple[str, ...], ...]
    generation_limit: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, the same for all siblings."""
        return self.group.trajectories[0].turns[0].start


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """A method's plan and its weights: for each sibling one number a sampled token, in order."""

    plan: Plan
    weights: tuple[tuple[float, ...], ...]

    @property
    def largest(self) -> float:
        """The largest weight in size, which is shown in full colour; 0 if there is none."""
        return max(abs(weight) for row in self.weights for weight in row)


def lecture_episodes() -> Episodes:
    """Play the four episodes in the real environment, through the encoding that the policy uses."""
    config = RunConfig()
    encoder = ChatEncoder(policy_tokenizer(config))
    task = next(task for task in tasks(NumberSearchParams(), "eval", 0) if task.data["secret"] == SECRET)
    trajectories = []
    for member, guesses in enumerate(GUESSES):

        def player(task: Task, seed: int, guesses: Sequence[int] = guesses) -> Player:
            return _Replay(guesses)

        spec = replace(SPEC, players={"replay": player})
        (trajectory,) = demonstrate(task, spec, "replay", seed=0, number=0, config=config.rollout, encoder=encoder).trajectories
        trajectories.append(replace(trajectory, member=member))
    pieces = tuple(tuple(encoder.tokenizer.decode([token]) for token in trajectory.token_ids) for trajectory in trajectories)
    return Episodes(group=Group(trajectories=tuple(trajectories)), pieces=pieces, generation_limit=config.generation_limit)


def weigh(episodes: Episodes, method: str) -> Weighted:
    """The weights of one method, from the code that trains, for the four episodes as one optimiser step on the current weights.

    Raises `InputError` for an unknown method.
    """
    plan = resolve(AlgorithmConfig(method=method, generation_limit=episodes.generation_limit))
    # On the current weights every ratio is 1 and every KL is 0, so that no weight depends on what the log-probs are.
    logp_M = torch.zeros(sum(trajectory.sampled_tokens for trajectory in episodes.group.trajectories), dtype=torch.float64)
    judged = [
        Judgement(values_T=_values(trajectory, guesses), ref_logp_T=np.zeros(trajectory.sampled_tokens))
        for trajectory, guesses in zip(episodes.group.trajectories, GUESSES, strict=True)
    ]
    w_M = group_weights(episodes.group, plan, logp_M, episodes.generation_limit, judged)
    parts = torch.split(w_M, [trajectory.sampled_tokens for trajectory in episodes.group.trajectories])
    return Weighted(plan=plan, weights=tuple(tuple(part.tolist()) for part in parts))


def _values(trajectory: Trajectory, guesses: Sequence[int]) -> FloatArray:
    """V of each sampled token in the place of a learned one: the exact success of guessing uniformly among what still fits.

    Within a turn it stays what it was before the turn's first token.
    """
    low, high, values = 1, NumberSearchParams().numbers, []
    for number, (turn, guess) in enumerate(zip(trajectory.turns, guesses, strict=True)):
        values += [float(plausible_success(high - low + 1, len(guesses) - number))] * len(turn.token_ids)
        low, high = (max(low, guess + 1), high) if guess < SECRET else (low, min(high, guess - 1))
    return np.array(values)


def by_position(trajectory: Trajectory, weights: Sequence[float]) -> list[float | None]:
    """The weights laid on all tokens of the trajectory; None on a token that the policy did not sample."""
    values = iter(weights)
    return [next(values) if sampled else None for sampled in trajectory.action_mask]


def spread(weights: Sequence[float]) -> str:
    """The weight of an episode's tokens in words: one number if all are equal, else from the smallest to the largest."""
    low, high = (f"{weight:+.4g}" if weight else "0" for weight in (min(weights), max(weights)))
    return low if low == high else f"{low} .. {high}"


def terminal_lines(episodes: Episodes, weighted: Weighted) -> Lines:
    """One method in the terminal: the four episodes with coloured tokens after the prompt, and their weights.

    `<` and `>` stand for the tokens that begin and end a turn.
    """
    row = weighted.plan.method
    lines = [Text.assemble((row.name, "bold"), f"  {row.summary}")]
    for trajectory, pieces, weights in zip(episodes.group.trajectories, episodes.pieces, weighted.weights, strict=True):
        line = Text(f"  R={trajectory.reward:g}  ")
        for piece, weight in list(zip(pieces, by_position(trajectory, weights), strict=True))[episodes.prompt_tokens :]:
            style = "bright_black" if weight is None else "bold green" if weight > 0 else "bold red" if weight < 0 else "bold"
            line.append(_SHORT.get(piece, piece).replace("\n", " "), style)
        line.append(f"  w = {spread(weights)}", "cyan")
        lines.append(line)
    return Lines(*lines, Text())
