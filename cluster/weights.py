"""The sending end of the weight push, on vLLM's own weight-transfer API: the one module of this package that knows vLLM.

Rank 0 of the learner is the sender; the other ranks only help to gather partitioned weights. `gloo` (CPU) is our transport,
registered with vLLM's factory; `nccl` (GPU) is vLLM's own. Both are driven through the same factory, source and client.
A push has one deadline; vLLM's nccl broadcast knows none, so there it holds for the calls to the generators and for the driver.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import ray
import torch
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from learner.learner import Learner
from rollout.weight_receiver import BACKEND, Deadline, GlooInitInfo, GlooUpdateInfo, broadcast, join_group, open_store, plan_chunks

_ECHO_S = 5.0


class PushError(RuntimeError):
    """A generator died during a push or was not done by its deadline."""


def _free_port(host: str) -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class LearnerSource(WeightSource):
    """The learner's weights as vLLM's `WeightSource`: Hugging Face names, ZeRO-3 partitions gathered one by one."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and full shape of every weight, without gathering."""
        return [ParamMeta(name, dtype, shape) for name, dtype, shape in self._learner.weights_metadata()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._learner.named_weights()


class FanOut:
    """vLLM's `VLLMWeightSyncClient` over several generator actors, with one deadline for a whole push.

    A push begins with `start_weight_update` and ends with `commit`; every call in between waits for what is left of `timeout_s`.
    Each generator is told its own first rank in the transfer group: the sender is rank 0, generator i begins at 1 + i * tp.
    """

    def __init__(self, generators: Sequence[Any], *, tensor_parallel: int, timeout_s: float) -> None:
        self._generators = generators
        self._tensor_parallel = tensor_parallel
        self._timeout_s = timeout_s
        self._deadline = Deadline(timeout_s)

    def _all(self, what: str, call: Callable[[int, Any], Any]) -> None:
        answers = [call(i, generator) for i, generator in enumerate(self._generators)]
        try:
            ray.get(answers, timeout=self._deadline.left_s())
        except ray.exceptions.GetTimeoutError:
            _, late = ray.wait(answers, num_returns=len(answers), timeout=0)
            names = ", ".join(str(answers.index(one)) for one in late)
            raise PushError(
                f"the weight push was not done within cluster.push_timeout_s={self._timeout_s:g} s of its start: generator {names} had not "
                f"finished {what}. The process hangs, or the deadline is too short"
            ) from None
        except ray.exceptions.RayActorError as error:
            raise PushError(f"a generator died during the weight push, in {what} ({error}); out of memory is the usual reason") from error

    def _call(self, method: str, payload: dict[str, Any]) -> None:
        self._all(method, lambda _, generator: generator.weights_rpc.remote(method, payload))

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Have every generator join the transfer group."""

        def join(i: int, generator: Any) -> Any:
            info = init_info | {"rank_offset": 1 + i * self._tensor_parallel}
            return generator.weights_rpc.remote("init_weight_transfer_engine", {"init_info": info})

        self._deadline = Deadline(self._timeout_s)
        self._all("init_weight_transfer_engine", join)

    def start_weight_update(self) -> None:
        """Begin a push: stop sampling and open the layers."""
        self._deadline = Deadline(self._timeout_s)
        self._call("start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        """Have every generator receive; returns when all have."""
        self._call("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close the layers."""
        self._call("finish_weight_update", {})

    def commit(self, version: int) -> None:
        """End a push: drop the caches of the old weights and go on sampling as `version`."""
        self._all("commit", lambda _, generator: generator.commit.remote(version))


@dataclass
class GlooTrainerInitInfo(TrainerInitInfo):
    """What the sender needs to open the gloo group: its host, the group's size, deadline and buffer size."""

    backend: ClassVar[str] = BACKEND

    host: str
    world_size: int
    timeout_s: float
    chunk_bytes: int


class GlooSender(TrainerWeightTransferEngine[GlooTrainerInitInfo]):
    """Broadcasts the learner's weights as few large byte buffers over gloo."""

    init_info_cls = GlooTrainerInitInfo

    def __init__(self, *, client: Any, source: WeightSource, info: GlooTrainerInitInfo) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self._timeout_s = info.timeout_s
        self._chunk_bytes = info.chunk_bytes
        self._group: Any = None

    @classmethod
    def trainer_init(cls, init_info: GlooTrainerInitInfo, *, client: Any, source: WeightSource | None = None) -> Self:
        """Open the store, have the generators join, and join as rank 0; other learner ranks return at once."""
        assert source is not None, "a full push needs a source"
        sender = cls(client=client, source=source, info=init_info)
        if sender.is_sender:
            store = open_store(init_info.host, 0, init_info.world_size, init_info.timeout_s, sender=True)
            receiver = GlooInitInfo(
                host=init_info.host,
                port=store.port,
                rank_offset=1,
                world_size=init_info.world_size,
                timeout_s=init_info.timeout_s,
                chunk_bytes=init_info.chunk_bytes,
            )
            with _Concurrently(lambda: client.init_weight_transfer_engine(asdict(receiver))):
                sender._group = join_group(store, 0, init_info.world_size, init_info.timeout_s)
        return sender

    def send_weights(self) -> None:
        """Push once: open, broadcast while the generators receive, close. Raises at the deadline, whatever part it comes in."""
        assert self.source is not None
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        deadline = Deadline(self._timeout_s)
        meta = self.source.metadata()
        self.client.start_weight_update()
        info = GlooUpdateInfo(
            names=[m.name for m in meta],
            dtype_names=[str(m.dtype).removeprefix("torch.") for m in meta],
            shapes=[list(m.shape) for m in meta],
            timeout_s=deadline.left_s(),
        )
        with _Concurrently(lambda: self.client.update_weights(asdict(info))):
            weights = iter(self.source)
            for chunk in plan_chunks([m.dtype.itemsize * torch.Size(m.shape).numel() for m in meta], self._chunk_bytes):
                parts = [next(weights)[1].detach().contiguous().cpu().view(-1).view(torch.uint8).clone() for _ in chunk]
                broadcast(self._group, torch.cat(parts), deadline)
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


class _Concurrently:
    """Runs a blocking call in a thread beside the body, and raises what it raised. The body's own error comes first.

    The thread is a daemon: if the body failed, the generators may wait until their own deadline, and nobody waits for them.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits for this one
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, RuntimeError):
            # A failed broadcast is most often the echo of the receivers' error: theirs is the one that explains.
            self._thread.join(timeout=None if error is None else _ECHO_S)
            if self._error is not None:
                raise self._error


def register() -> None:
    """Make the gloo sender known to vLLM's trainer factory."""
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(BACKEND, GlooSender)


def open_sender(
    source: WeightSource,
    client: FanOut,
    *,
    backend: str,
    rank: int,
    host: str,
    world_size: int,
    timeout_s: float,
    chunk_bytes: int,
) -> TrainerWeightTransferEngine[Any]:
    """Connect one learner rank to the generators; all ranks call it. `world_size` counts the sender and every receiver."""
    register()
    if backend == BACKEND:
        info: TrainerInitInfo = GlooTrainerInitInfo(
            rank=rank, host=host, world_size=world_size, timeout_s=timeout_s, chunk_bytes=chunk_bytes
        )
    else:
        info = NCCLTrainerInitInfo(
            rank=rank,
            master_address=host,
            master_port=_free_port(host) if rank == 0 else 0,  # the sender binds it at once, the other ranks never look at it
            world_size=world_size,
            packed_buffer_size_bytes=chunk_bytes,
        )
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
