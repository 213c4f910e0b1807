"""A learner rank whose pushes go wrong on demand; everything about it is real but the fault."""

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

from cluster.learner_rank import LearnerRank
from envs.metrics import Metric

Fault = Literal["none", "flip", "skip", "stop", "kill"]


class Saboteur(LearnerRank):
    """`flip` changes a few bytes of one tensor on the wire, `skip` says that a push was done and sends nothing, `stop` and `kill`
    do that to the process `victim` while the weights are on their way."""

    fault: Fault = "none"
    victim: int | None = None

    def sabotage(self, fault: Fault, victim: int | None = None) -> None:
        self.fault, self.victim = fault, victim

    def strike(self) -> None:
        if self._rank == 0 and self.victim is not None:
            os.kill(self.victim, signal.SIGSTOP if self.fault == "stop" else signal.SIGKILL)
            self.victim = None

    def connect(self, generators: Sequence[Any], backend: str) -> None:
        super().connect(generators, backend)
        assert self._sender.source is not None
        self._sender.source = _Flipping(self._sender.source, self)

    def push(self, version: int) -> dict[str, Metric]:
        if self.fault == "skip":
            if self._rank == 0:
                self._client.commit(version)
            return {}
        return super().push(version)


class _Flipping(WeightSource):
    def __init__(self, source: WeightSource, rank: Saboteur) -> None:
        self._source = source
        self._rank = rank

    def metadata(self) -> list[ParamMeta]:
        return self._source.metadata()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self._source:
            self._rank.strike()
            if self._rank.fault == "flip" and name == "model.layers.0.mlp.down_proj.weight":
                weight = weight.clone()
                weight.view(torch.uint8)[0, :64] ^= 0x01
                weight.view(torch.uint8)[0, 3:64:4] ^= 0x02  # of the exponent
            yield name, weight
