"""What samples actions, seen from its two users: an episode needs a `Policy`, a generator needs an `Engine`."""

from typing import Any, Protocol

from rollout.types import Completion, Sampling


class Policy(Protocol):
    """Anything that samples a turn."""

    async def generate(self, token_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """Sample one turn behind `token_ids`, up to and including the end-of-turn token."""
        ...


class Engine(Policy, Protocol):
    """What a generator needs of an engine; `version` counts the weight pushes it has received."""

    version: int

    async def score(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        """Log-probs at temperature 1 of `token_ids[1:]`, each given the tokens before it, by a fresh forward pass."""
        ...

    async def weights_rpc(self, method: str, **payload: Any) -> None:
        """Call one step of vLLM's weight-transfer protocol on the workers."""
        ...

    async def commit(self, version: int) -> None:
        """The new weights are loaded: forget every cached prefix of the old ones and count tokens as `version` from now on."""
        ...

    def close(self) -> None:
        """Stop the engine."""
        ...
