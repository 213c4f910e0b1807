"""Chat encoding that is token-in, token-out and append-only.

The prompt is rendered once. What the policy sampled is appended as the very ids that it sampled, and an observation is
appended as the tokens that the chat template puts between two assistant turns. Nothing is ever rendered or tokenised
again, so the tokens that are trained are the tokens that were sampled.

That is right only if the template keeps the prefix property: the rendering of a conversation starts with the rendering of
every shorter one. A template that rewrites earlier turns (drops their reasoning, for example) is refused with the reason.

What an environment says is text, never control: the letters of a control token such as `<|im_end|>` in it are written as ordinary
tokens, so that no observation can end its own turn or begin another one. Only the template and the policy write control tokens.
"""

import re
from collections.abc import Iterator, Sequence
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
        self._control = self._control_tokens()
        self._names = re.compile("|".join(re.escape(name) for name in sorted(self._control.values(), key=len, reverse=True)) or r"(?!)")
        for action in _PROBES:
            self._check_prefix_property(action)
        self.end_id, self._glue = self._end_of_turn()
        self._in_reply = self._count(self._tokens(self._glue + self._reply(self._history(1), "TEXT")))
        self._turns: dict[tuple[str, ...], int] = {}
        self._observations: dict[str, tuple[int, ...]] = {}
        self._texts: dict[tuple[int, ...], str] = {}

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of the first messages, up to where the assistant begins to write."""
        roles = tuple(message.role for message in messages)
        if roles not in self._turns:
            self._turns[roles] = self._count(self._tokens(self._render([(role, "TEXT") for role in roles], generate=True)))
        guard = _Guard(self._names, [message.content for message in messages])
        turns = [(message.role, guard.hide(message.content)) for message in messages]
        return self._guarded(guard, self._render(turns, generate=True), self._turns[roles])

    def observation(self, text: str) -> tuple[int, ...]:
        """The token ids between the end of one assistant turn and the beginning of the next, with `text` as the reply."""
        if text not in self._observations:
            if len(self._observations) > 100_000:  # a bound, so that a long run with ever new replies does not grow for ever
                self._observations.clear()
            guard = _Guard(self._names, [text])
            self._observations[text] = self._guarded(guard, self._glue + self._reply(self._history(1), guard.hide(text)), self._in_reply)
        return self._observations[text]

    def action(self, text: str) -> tuple[int, ...]:
        """The token ids of an action as a demonstration writes it, end-of-turn token included."""
        guard = _Guard(self._names, [text])
        return (*self._guarded(guard, guard.hide(text), 0), self.end_id)

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

    def _guarded(self, guard: "_Guard", rendered: str, control: int) -> tuple[int, ...]:
        """Tokenise a rendering that has `control` control tokens of the template's own; raises `InputError` if there are more."""
        token_ids: list[int] = []
        for part, is_name in guard.parts(rendered):
            # Cut in two, the letters are not the name of a control token any more.
            token_ids += self._tokens(part[:1]) + self._tokens(part[1:]) if is_name else self._tokens(part)
        if self._count(token_ids) > control:
            raise InputError(
                f"a text of the environment has a control token that this tokenizer cannot write as ordinary text: {rendered[:200]!r}. "
                "It could end its own turn and forge another one; have the environment leave it out"
            )
        return tuple(token_ids)

    def _count(self, token_ids: Sequence[int]) -> int:
        return sum(token in self._control for token in token_ids)

    def _control_tokens(self) -> dict[int, str]:
        """Special tokens, and what else of the added vocabulary the template writes around turns, with their names."""
        control = {number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        control |= {*self.tokenizer.all_special_ids, *self._tokens(self._render(self._history(1), generate=True))}
        return {number: name for name, number in self.tokenizer.get_added_vocab().items() if number in control}

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


class _Guard:
    """Keeps control tokens' names in texts apart from those that a template writes around the texts.

    While a template renders, each name is hidden behind a character that is in none of the texts; afterwards the rendering is cut
    there. A text without such a name is rendered and tokenised as it is.
    """

    def __init__(self, names: re.Pattern[str], texts: Sequence[str]) -> None:
        found = sorted({name for text in texts for name in names.findall(text)})
        free = (mark for mark in map(chr, range(0xE000, 0xF900)) if not any(mark in text for text in texts))  # of no script
        self._names = names
        self._marks = dict(zip(found, free, strict=False))

    def hide(self, text: str) -> str:
        """The text with a mark in place of every name."""
        return self._names.sub(lambda match: self._marks[match[0]], text) if self._marks else text

    def parts(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """What was rendered, cut at the marks: each part, and whether it is a name that was hidden."""
        names = {mark: name for name, mark in self._marks.items()}
        pieces: list[str] = re.split(f"([{''.join(names)}])", rendered) if names else [rendered]
        yield from ((names.get(piece, piece), piece in names) for piece in pieces if piece)


def load_encoder(model: str, *, observation_role: str = "tool") -> ChatEncoder:
    """The encoder of a model folder or hub name. Raises `InputError` if its tokenizer cannot be read."""
    from transformers import AutoTokenizer  # 1 s to import: only those who read a tokenizer pay for it

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot read a tokenizer from {model}: {error}. Expected a Hugging Face folder or hub name") from error
    return ChatEncoder(tokenizer, observation_role=observation_role)
