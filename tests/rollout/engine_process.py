"""An engine in a process of its own, driven by coroutine functions that the tests send to it.

vLLM makes its own default process group and reads its environment once, so that it shares a process with nothing else.
"""

import asyncio
import multiprocessing
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeVar

import torch
from transformers import AutoModelForCausalLM
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

from cluster.weights import GlooSender, GlooTrainerInitInfo
from rollout.config import GeneratorConfig
from rollout.engine import start_engine
from rollout.policy import Engine
from rollout.types import Completion, Sampling

T = TypeVar("T")
DEADLINE_S = 120.0


class EngineProcess:
    """`engine(work, *args)` runs `await work(the engine, *args)` over there and returns the result; `engine.wait()` after starting."""

    def __init__(self, model: str, end_id: int, max_model_len: int, config: GeneratorConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, model, end_id, max_model_len, config))
        self._process.start()
        theirs.close()

    def __call__(self, work: Callable[..., Awaitable[T]], *args: object) -> T:
        self._connection.send((work, args))
        result: T = self.wait()
        return result

    def wait(self) -> Any:
        assert self._connection.poll(DEADLINE_S), "the engine gives no answer"
        failure, result = self._connection.recv()
        assert failure is None, failure
        return result

    def hang_up(self) -> None:
        """Have it end, without waiting for it."""
        self._connection.close()

    def close(self) -> None:
        self.hang_up()
        self._process.join(20)
        self._process.kill()


def _serve(connection: Connection, model: str, end_id: int, max_model_len: int, config: GeneratorConfig) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    asyncio.run(_answer(connection, model, end_id, max_model_len, config))


async def _answer(connection: Connection, model: str, end_id: int, max_model_len: int, config: GeneratorConfig) -> None:
    engine = start_engine(model, end_id, max_model_len, config, seed=0, transfer="gloo")
    connection.send((None, None))
    while True:
        try:
            work, args = await asyncio.to_thread(connection.recv)
        except EOFError:
            engine.close()
            return
        try:
            connection.send((None, await asyncio.wait_for(work(engine, *args), DEADLINE_S)))
        except Exception:  # noqa: BLE001 - the test on the other side shall say what went wrong
            connection.send((traceback.format_exc(), None))


# What the tests send.


async def sample(engine: Engine, prompts: Sequence[tuple[int, ...]], samplings: Sequence[Sampling]) -> list[Completion]:
    """All turns at the same time."""
    pairs = zip(prompts, samplings, strict=True)
    return list(await asyncio.gather(*(engine.generate(prompt, sampling) for prompt, sampling in pairs)))


async def score(engine: Engine, rows: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
    return list(await asyncio.gather(*(engine.score(row) for row in rows)))


async def weights_rpc(engine: Engine, method: str, payload: Mapping[str, Any]) -> None:
    await engine.weights_rpc(method, **payload)


async def commit(engine: Engine, version: int) -> None:
    await engine.commit(version)


async def go_on_without_commit(engine: Any) -> None:
    """What would happen if nobody reset the cache."""
    engine._updating = False


async def begin(engine: Any, prompt: tuple[int, ...], sampling: Sampling, tokens: int) -> None:
    """Begin a turn and return once it is asked for and has `tokens` tokens; `finish` waits for it."""
    engine.begun = asyncio.create_task(engine.generate(prompt, sampling))
    while not (engine._pending and len(next(iter(engine._pending.values())).token_ids) >= tokens):
        await asyncio.sleep(0)


async def begin_for(engine: Any, prompt: tuple[int, ...], sampling: Sampling, seconds: float) -> None:
    """Begin a turn and return after some time, for an engine whose tokens are not seen before the turn ends."""
    engine.begun = asyncio.create_task(engine.generate(prompt, sampling))
    await asyncio.sleep(seconds)
    assert not engine.begun.done(), "the turn is over already; take a longer one"


async def finish(engine: Any) -> Completion:
    completion: Completion = await engine.begun
    return completion


class Client:
    """vLLM's weight-sync client, talking to one engine process."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._engine(weights_rpc, "init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._engine(weights_rpc, "start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        self._engine(weights_rpc, "update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._engine(weights_rpc, "finish_weight_update", {})


class ModelSource(WeightSource):
    """The weights of a transformers model; tied ones once."""

    def __init__(self, lm: torch.nn.Module) -> None:
        self.lm = lm

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in self]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter((name, weight.detach()) for name, weight in self.lm.named_parameters())


class Pair:
    """A model in an engine and the same model in transformers, and the transport between them."""

    def __init__(self, model: str, end_id: int, max_model_len: int, engine: Literal["inprocess", "async"] = "inprocess") -> None:
        self.end_id = end_id
        self.lm: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.engine = EngineProcess(model, end_id, max_model_len, GeneratorConfig(engine=engine, kv_cache_gib=0.1, max_num_seqs=64))

    def wait(self) -> "Pair":
        self.engine.wait()
        # Buffers of a tenth of the model, so that a push takes several of them.
        info = GlooTrainerInitInfo(rank=0, host="127.0.0.1", world_size=2, timeout_s=60.0, chunk_bytes=2**17)
        self._sender = GlooSender.trainer_init(info, client=Client(self.engine), source=ModelSource(self.lm))
        return self

    def move(self, seed: int) -> None:
        """Give the transformers model other weights."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.lm.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator)

    def send(self) -> None:
        """Push its weights into the engine, without `commit`."""
        self._sender.send_weights()

    def push(self, version: int) -> None:
        """Push its weights into the engine."""
        self.send()
        self.engine(commit, version)

    @torch.no_grad()
    def log_probs(self, token_ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """Log-probs of the next token after each token of a row, by transformers; shape (tokens, vocabulary)."""
        return torch.log_softmax(self.lm(torch.tensor([list(token_ids)])).logits[0] / temperature, -1)

    def logp(self, prompt: Sequence[int], sampled: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """Log-probs of `sampled` behind `prompt`, by transformers."""
        rows = self.log_probs([*prompt, *sampled], temperature)[len(prompt) - 1 : -1]
        return rows[torch.arange(len(sampled)), torch.tensor(list(sampled))]

    def gap(self, prompt: tuple[int, ...], completion: Completion, temperature: float = 1.0) -> float:
        """The largest difference between the reported log-probs and those of transformers."""
        expected = self.logp(prompt, completion.token_ids, temperature)
        return float((expected - torch.tensor(completion.logp_old)).abs().max())

    def close(self) -> None:
        self._sender.shutdown()
        self.engine.close()
