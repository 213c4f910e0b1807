"""Chat encoding that is token-in, token-out and append-only.

The prompt is rendered once. What the policy sampled is appended as the very ids that it sampled, and an observation is
appended as the tokens that the chat template puts between two assistant turns. Nothing is ever rendered or tokenised
again, so the tokens that are trained are the tokens that were sampled.

That is right only if the template keeps the prefix property: the rendering of a conversation starts with the rendering of
every shorter one. A template that rewrites earlier turns (drops their reasoning, for example) is refused with the reason.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from envs.contract import Message
from envs.errors import InputError

_ACTION = "ACTION"
_PROBES = ("ACTION", "<think>\nreason\n</think>\n\nACTION")


class ChatEncoder:
    """Turns messages into token ids for one tokenizer; `end_id` is the token that ends an assistant turn.

    Raises `InputError` if the tokenizer has no chat template, the template does not keep the prefix property, ignores the
    observation role, or does not end an assistant's turn with one special token.
    """

    def __init__(self, tokenizer: Any, *, observation_role: str = "tool") -> None:
        self.tokenizer = tokenizer
        self.observation_role = observation_role
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(
                f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; expected a chat model whose "
                "tokenizer_config.json or chat_template.jinja has one. Use an instruct model, or add a ChatML template to its folder"
            )
        for action in _PROBES:
            self._check_prefix_property(action)
        self.end_id, self._glue = self._end_of_turn()
        self._observations: dict[str, tuple[int, ...]] = {}
        self._texts: dict[tuple[int, ...], str] = {}

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of the first messages, up to where the assistant begins to write."""
        return self._tokens(self._render([(message.role, message.content) for message in messages], generate=True))

    def observation(self, text: str) -> tuple[int, ...]:
        """The token ids between the end of one assistant turn and the beginning of the next, with `text` as the reply."""
        if text not in self._observations:
            if len(self._observations) > 100_000:  # a bound, so that a long run with ever new replies does not grow for ever
                self._observations.clear()
            self._observations[text] = self._tokens(self._glue + self._reply(self._history(1), text))
        return self._observations[text]

    def action(self, text: str) -> tuple[int, ...]:
        """The token ids of an action as a demonstration writes it, end-of-turn token included."""
        return (*self._tokens(text), self.end_id)

    def text(self, token_ids: tuple[int, ...]) -> str:
        """The text of sampled tokens, end-of-turn token removed; nothing else is stripped, so control tokens stay visible."""
        if token_ids not in self._texts:
            if len(self._texts) > 100_000:
                self._texts.clear()
            ids = token_ids[:-1] if token_ids and token_ids[-1] == self.end_id else token_ids
            self._texts[token_ids] = self.tokenizer.decode(ids, skip_special_tokens=False)
        return self._texts[token_ids]

    @cached_property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return len(self.tokenizer)

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, turns: Sequence[tuple[str, str]], *, generate: bool) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))
        except Exception as error:  # a template is foreign code and may raise anything; its words are the reason
            raise InputError(
                f"the chat template refuses the roles {[role for role, _ in turns]}: {error}. If it has no "
                f"{self.observation_role!r} role, set model.observation_role=user"
            ) from error

    def _history(self, actions: int, action: str = _ACTION) -> list[tuple[str, str]]:
        turns = [("user", "TASK")]
        for number in range(actions):
            turns += [("assistant", action)] if number == 0 else [(self.observation_role, "REPLY"), ("assistant", action)]
        return turns

    def _reply(self, history: list[tuple[str, str]], text: str) -> str:
        before = self._render(history, generate=False)
        after = self._render([*history, (self.observation_role, text)], generate=True)
        return after[len(before) :]

    def _check_prefix_property(self, action: str) -> None:
        for actions in (1, 2, 3):
            history = self._history(actions, action)
            start = self._render(history[:-1], generate=True)
            done = self._render(history, generate=False)
            continued = self._render([*history, (self.observation_role, "REPLY")], generate=True)
            for shorter, longer, what in ((start, done, "the assistant's turn"), (done, continued, "the next observation")):
                if not longer.startswith(shorter):
                    at = next((i for i, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(longer))
                    raise InputError(
                        f"the chat template rewrites earlier turns: adding {what} changes the text at character {at}, from "
                        f"{shorter[at : at + 30]!r} to {longer[at : at + 30]!r}. Training needs an append-only template, or the "
                        "tokens that are trained are not the ones that were sampled. Use a template that keeps every turn as it was"
                    )
            if "REPLY" not in continued[len(done) :]:
                raise InputError(
                    f"the chat template drops messages of role {self.observation_role!r}, so the policy would never see a reply; "
                    "set model.observation_role=user"
                )
        if self._reply(self._history(1, action), "REPLY") != self._reply(self._history(2, action), "REPLY"):
            raise InputError(
                "the chat template renders the same reply in two ways at two turns; expected one text, whatever came before. "
                "Use a template whose turns do not depend on their position"
            )

    def _end_of_turn(self) -> tuple[int, str]:
        history = self._history(1)
        start, done = self._render(history[:-1], generate=True), self._render(history, generate=False)
        tail = done[len(start) :].partition(_ACTION)[2]
        ids = self._tokens(tail)
        added = set(self.tokenizer.get_added_vocab().values()) | set(self.tokenizer.all_special_ids)
        if not ids or ids[0] not in added:
            raise InputError(
                f"the chat template ends an assistant's turn with {tail[:20]!r}; expected one special token (such as <|im_end|>), "
                "because the policy must be able to sample the end of its turn as one action"
            )
        end = self.tokenizer.convert_ids_to_tokens(ids[0])
        return ids[0], tail[len(end) :]


def load_encoder(model: str, *, observation_role: str = "tool") -> ChatEncoder:
    """The encoder of a model folder or hub name. Raises `InputError` if its tokenizer cannot be read."""
    from transformers import AutoTokenizer  # 1 s to import: only those who read a tokenizer pay for it

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot read a tokenizer from {model}: {error}. Expected a Hugging Face folder or hub name") from error
    return ChatEncoder(tokenizer, observation_role=observation_role)
