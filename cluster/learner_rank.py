"""One rank of the learner with its end of the weight push: what runs inside a learner actor. A plain class."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist

from cluster.config import RunConfig
from envs.metrics import Metric, Reduction
from learner.config import AlgorithmConfig, LearnerConfig
from learner.learner import Learner, Start
from learner.types import Judgement, MicroBatch


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the learner ranks meet: the store that rank 0 keeps open."""

    address: str
    port: int


class LearnerRank:
    """One rank of the learner together with its end of the weight push."""

    def __init__(self, model: str, config: RunConfig, rank: int) -> None:
        self._model = model
        self._config = config
        self._rank = rank

    def meet(self) -> Rendezvous:
        """Open the store where the ranks meet, on this machine; asked of rank 0.

        It has its port from here on, so that nobody can take it while the models are loaded.
        """
        # A Ray cluster of this run's own is on one machine, and nothing of it needs to be reached from outside.
        address = ray.util.get_node_ip_address() if self._config.cluster.address else "127.0.0.1"
        self._store = self._open_store(address, 0)
        return Rendezvous(address=address, port=self._store.port)

    def join(self, meet: Rendezvous) -> None:
        """Load the model and join the other ranks; all ranks call it."""
        self._meet = meet
        self._learner = Learner(
            self._model,
            self._config.learner,
            self._config.algorithm,
            temperature=self._config.rollout.temperature,
            total_steps=1,
            seed=self._config.seed,
            rank=self._rank,
            world_size=self._config.cluster.learners,
            store=self._store if self._rank == 0 else self._open_store(meet.address, meet.port),
            timeout_s=self._config.cluster.step_timeout_s,
        )

    def _open_store(self, address: str, port: int) -> dist.TCPStore:
        deadline = timedelta(seconds=self._config.cluster.start_timeout_s)
        return dist.TCPStore(address, port, is_master=self._rank == 0, timeout=deadline, wait_for_workers=False)

    def connect(self, generators: Sequence[Any], backend: str) -> None:
        """Open the weight transfer to all generators; all ranks call it."""
        from cluster.weights import FanOut, LearnerSource, open_sender  # vLLM: seconds, and only the actor needs it

        cluster, parallel = self._config.cluster, self._config.generator.tensor_parallel
        self._client = FanOut(generators, tensor_parallel=parallel, timeout_s=cluster.push_timeout_s)
        self._sender = open_sender(
            LearnerSource(self._learner),
            self._client,
            backend=backend,
            rank=self._rank,
            host=self._meet.address,
            world_size=1 + len(generators) * parallel,
            timeout_s=cluster.push_timeout_s,
            chunk_bytes=cluster.push_chunk_mib * 2**20,
        )

    def begin(self, algorithm: AlgorithmConfig, learner: LearnerConfig, total_steps: int, start: Start = "here") -> None:
        """Begin a phase of training (see `Learner.begin`)."""
        self._learner.begin(algorithm, learner, total_steps, start)

    def judge(self, rows: Sequence[Sequence[int]], masks: Sequence[Sequence[int]]) -> dict[int, Judgement]:
        """This rank's share of what credit needs to know of the rows (see `Learner.judge`)."""
        return self._learner.judge(rows, masks)

    def train(self, steps: Sequence[Sequence[MicroBatch]]) -> list[dict[str, Metric]]:
        """Take optimiser steps: for each, this rank's micro-batches."""
        return [self._learner.train_step(micro_batches) for micro_batches in steps]

    def push(self, version: int) -> dict[str, Metric]:
        """Push the weights to every generator as `version`; returns when all sample with them, within `cluster.push_timeout_s`."""
        begun = time.perf_counter()
        self._sender.send_weights()
        if self._rank == 0:
            self._client.commit(version)
        size = sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in self._learner.weights_metadata())
        seconds = time.perf_counter() - begun
        return {
            "sync/push_s": Metric(value=seconds, reduction=Reduction.MAX),
            "sync/push_gb_per_s": Metric(value=size / seconds / 1e9, reduction=Reduction.MIN),
        }

    def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """The learner's log-probs of every row's tokens but the first, at temperature 1."""
        return self._learner.logprobs(rows)

    def export(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder; all ranks call it."""
        self._learner.export(folder)

    def close(self) -> None:
        """Leave all groups."""
        self._learner.close()
