"""One episode as it grows: tokens, mask and log-probs, append-only. Policies and scripted players both write through it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from envs.contract import End, Message, Step, Task
from envs.errors import InputError
from rollout.chat import ChatEncoder
from rollout.hint import hinted, with_prompt
from rollout.types import Completion, Departure, Trajectory, Turn


class PromptTooLong(InputError):  # noqa: N818 - what is wrong, as in EnvFault
    """A task's prompt leaves no room for a turn: before a run it is the config's fault, in a run it costs the task's group."""


@dataclass(kw_only=True)
class Episode:
    """An episode in the making. `budget()` before each turn, then `act`, then `observe`, until `end` is set.

    Tokens are only ever appended; the alignment of the finished episode is checked by `Trajectory`. A `hint` stands at the end of
    the prompt, and is taken out of the finished episode unless `train_with_hint`.
    """

    task: Task
    encoder: ChatEncoder
    max_turn_tokens: int
    max_context_tokens: int
    group: int = 0
    member: int = 0
    seed: int = 0
    hint: str | None = None
    train_with_hint: bool = True
    departures: tuple[Departure, ...] = ()
    prompt: tuple[int, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    action_mask: list[int] = field(default_factory=list)
    logp_old: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    end: End | None = None

    def begin(self, messages: Sequence[Message]) -> None:
        """Write the prompt. Raises `PromptTooLong` if not even one full turn fits behind it."""
        self.prompt = self.encoder.prompt(messages)
        prompt = self.prompt if self.hint is None else self.encoder.prompt(hinted(messages, self.hint))
        if len(prompt) + self.max_turn_tokens > self.max_context_tokens:
            raise PromptTooLong(
                f"task {self.task.id}: the prompt has {len(prompt)} tokens and a turn may take {self.max_turn_tokens}, but "
                f"rollout.max_context_tokens is {self.max_context_tokens}; raise it, or lower rollout.max_turn_tokens"
            )
        self._append(prompt, None)

    def budget(self) -> int:
        """How many tokens the next turn may sample; 0 ends the episode as `OUT_OF_TOKENS`, known before the turn."""
        room = min(self.max_turn_tokens, self.max_context_tokens - len(self.token_ids))
        if room < 1:
            self.end = End.OUT_OF_TOKENS
        return max(room, 0)

    def act(self, completion: Completion) -> str:
        """Append what was sampled; returns its text. A turn that did not end within its budget ends the episode."""
        text = self.encoder.text(completion.token_ids)
        turn = Turn(
            start=len(self.token_ids),
            token_ids=completion.token_ids,
            logp_old=completion.logp_old,
            text=text,
            observation="",
            reward=0.0,
            valid=completion.stopped,
            first_version=completion.first_version,
            last_version=completion.last_version,
        )
        self._append(completion.token_ids, completion.logp_old)
        self.turns.append(turn)
        if not completion.stopped:
            self.end = End.OUT_OF_TOKENS
        return text

    def observe(self, step: Step) -> None:
        """Take the environment's answer. The last observation is kept as text only: no action follows it."""
        self.turns[-1] = replace(self.turns[-1], observation=step.observation, reward=step.reward, valid=step.valid)
        self.end = step.end
        if step.end is None:
            self._append(self.encoder.observation(step.observation), None)

    def finish(self, summary: Mapping[str, float]) -> Trajectory:
        """The finished trajectory, checked. Trailing observation tokens that no action follows are cut."""
        assert self.end is not None, "an episode is finished only when it has an end"
        stop = self.turns[-1].start + len(self.turns[-1].token_ids) if self.turns else len(self.token_ids)
        trajectory = Trajectory(
            task=self.task,
            group=self.group,
            member=self.member,
            seed=self.seed,
            token_ids=tuple(self.token_ids[:stop]),
            action_mask=tuple(self.action_mask[:stop]),
            logp_old=tuple(self.logp_old[:stop]),
            turns=tuple(self.turns),
            end=self.end,
            summary=dict(summary),
            departures=self.departures,
        )
        return trajectory if self.hint is None or self.train_with_hint else with_prompt(trajectory, self.prompt)

    def _append(self, token_ids: Sequence[int], logp_old: Sequence[float] | None) -> None:
        self.token_ids.extend(token_ids)
        self.action_mask.extend([0 if logp_old is None else 1] * len(token_ids))
        self.logp_old.extend([0.0] * len(token_ids) if logp_old is None else logp_old)
