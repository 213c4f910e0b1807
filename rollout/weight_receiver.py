"""The plugin that vLLM loads to receive weights on the CPU: a `gloo` engine for vLLM's own weight-transfer API.

vLLM finds `register` through the `vllm.general_plugins` entry point, in the engine's subprocess too. Weights travel as few
large byte buffers (packed), never one call a tensor. Both ends cut the buffers by `plan_chunks`, so they cannot disagree.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

BACKEND = "gloo"


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """Where the sender's store listens, this receiver's first rank, and the size of the group (sender included)."""

    host: str
    port: int
    rank_offset: int
    world_size: int
    timeout_s: float
    chunk_bytes: int


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """What one push carries, Hugging Face names, torch dtype names and full shapes in sending order, and the seconds left for it."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    timeout_s: float


class Deadline:
    """A moment after which a push is given up. Everything that the push waits for gets what is left, so no part renews it."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds until then; a little more than 0 when it has passed, because 0 often means for ever."""
        return max(self._end - time.monotonic(), 1e-3)


def plan_chunks(sizes: Sequence[int], chunk_bytes: int) -> list[range]:
    """Cut tensors of `sizes` bytes into consecutive runs of at most `chunk_bytes` each (one tensor may exceed it alone).

    >>> plan_chunks([4, 4, 9, 1], 8)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    chunks: list[range] = []
    start, filled = 0, 0
    for index, size in enumerate(sizes):
        if index > start and filled + size > chunk_bytes:
            chunks.append(range(start, index))
            start, filled = index, 0
        filled += size
    if start < len(sizes):
        chunks.append(range(start, len(sizes)))
    return chunks


def open_store(host: str, port: int, world_size: int, timeout_s: float, *, sender: bool) -> dist.TCPStore:
    """The store where the group meets. The sender opens it (port 0 takes a free one: `store.port`), the receivers join it."""
    return dist.TCPStore(host, port, world_size, sender, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


def join_group(store: dist.TCPStore, rank: int, world_size: int, timeout_s: float) -> ProcessGroupGloo:
    """Join the transfer group; returns when all are there, and raises after `timeout_s`.

    The group belongs to nobody's default process group, so it lives beside the learner's own and vLLM's own.
    """
    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [ProcessGroupGloo.create_device(hostname=_own_address(store.host, store.port))]
    return ProcessGroupGloo(dist.PrefixStore("weights", store), rank, world_size, options)


def broadcast(group: ProcessGroupGloo, buffer: torch.Tensor, deadline: Deadline) -> None:
    """Send `buffer` from rank 0 to all, or receive it. Raises `RuntimeError` at the deadline or when a peer is gone."""
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    options.timeout = timedelta(seconds=deadline.left_s())
    group.broadcast([buffer], options).wait()


def _own_address(host: str, port: int) -> str:
    """This machine's address on the network that leads to `host`: a machine's name may lead to an address that only it can reach."""
    family, *_, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


class GlooReceiver(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """Receives packed broadcasts and loads them through vLLM's layerwise reload."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _group: ProcessGroupGloo | None = None
    _chunk_bytes = 0

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join the sender's group. Raises after `timeout_s` if the sender is not there."""
        rank = init_info.rank_offset + self.parallel_config.rank
        store = open_store(init_info.host, init_info.port, init_info.world_size, init_info.timeout_s, sender=False)
        self._group = join_group(store, rank, init_info.world_size, init_info.timeout_s)
        self._chunk_bytes = init_info.chunk_bytes

    def start_weight_update(self) -> None:
        """Make the layers ready to be loaded again: on CPU their weights are pre-packed and a bare load would fail."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, object]) -> None:
        """Receive one push. The base class would synchronise an accelerator, which raises where there is none."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Receive every chunk and hand its tensors to the model's own loader."""
        self.model.load_weights(self._receive(update_info))

    def _receive(self, info: GlooUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        assert self._group is not None, "init_transfer_engine comes first"
        deadline = Deadline(info.timeout_s)
        dtypes = [getattr(torch, name) for name in info.dtype_names]
        sizes = [dtype.itemsize * torch.Size(shape).numel() for dtype, shape in zip(dtypes, info.shapes, strict=True)]
        for chunk in plan_chunks(sizes, self._chunk_bytes):
            buffer = torch.empty(sum(sizes[i] for i in chunk), dtype=torch.uint8)
            broadcast(self._group, buffer, deadline)
            offset = 0
            for i in chunk:
                # A copy, because the layerwise reload may keep a tensor, whose bytes need not be aligned inside the buffer.
                raw = buffer[offset : offset + sizes[i]].clone()
                offset += sizes[i]
                yield info.names[i], raw.view(dtypes[i]).view(info.shapes[i])

    def finish_weight_update(self) -> None:
        """Repack the layers, and the head too if it shares the embedding's weight.

        With tied embeddings the reload repacks the embedding but not the head, which then keeps the old weights: the engine
        would sample from a mixture of old and new weights without any error.
        """
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        if head is not None and getattr(self.model_config.hf_config, "tie_word_embeddings", False):
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


def register() -> None:
    """Called by vLLM in every process that runs an engine."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, GlooReceiver)
