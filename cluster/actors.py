"""Starting and ending the processes of a run: the one file that turns plain classes into Ray actors."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray

from cluster.config import RunConfig
from cluster.interrupt import postponed, uninterrupted
from cluster.learner_rank import LearnerRank
from cluster.resources import check_address, check_resources, cpus, transport, usable_gpus
from cluster.workers import EnvWorker, RemoteHost
from envs.catalog import find
from envs.errors import InputError
from envs.metrics import Metric
from learner.types import MicroBatch
from rollout.generator import Generator
from rollout.play import LocalHost

_CLOSE_S = 20.0
_PUSH_GRACE_S = 10.0
_ENV_WORKER_RESTARTS = 100


class RunError(RuntimeError):
    """Something in the cluster failed or did not answer in time; the message says what and where."""


def wait(calls: Sequence[Any], timeout_s: float, what: str) -> list[Any]:
    """The results of remote calls, or a clear error: every call has a deadline, and a dead process is named.

    Raises the `InputError` that a process raised as it was, and `RunError` for everything else.
    """
    try:
        return list(ray.get(list(calls), timeout=timeout_s))
    except ray.exceptions.GetTimeoutError:
        raise RunError(f"{what} took longer than {timeout_s:g} s; a process hangs, or the deadline in `cluster` is too short") from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise error.cause from None
        raise RunError(f"{what} failed:\n{error}") from error
    except ray.exceptions.RayActorError as error:
        raise RunError(f"{what}: a process died ({error}); out of memory is the usual reason") from error
    except ray.exceptions.RayError as error:
        raise RunError(f"{what}: Ray failed with {type(error).__name__}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The handles of a run's actors, their deadlines, and how the weights travel between them."""

    generators: tuple[Any, ...]
    learners: tuple[Any, ...]
    env_workers: tuple[Any, ...]
    config: RunConfig
    transfer: str

    def learn(self, call: Callable[[Any], Any], what: str, timeout_s: float | None = None) -> list[Any]:
        """Call every learner rank at the same time and wait for all, by default for `cluster.step_timeout_s`."""
        return wait([call(learner) for learner in self.learners], timeout_s or self.config.cluster.step_timeout_s, what)

    def push(self, version: int) -> list[dict[str, Metric]]:
        """Push the learners' weights to the generators as `version`; returns every rank's metrics."""
        # The sender knows which generator is late, so it has a little longer to say so than the push may take.
        timeout_s = self.config.cluster.push_timeout_s + _PUSH_GRACE_S
        return self.learn(lambda rank: rank.push.remote(version), "pushing the weights", timeout_s)

    def learn_each(self, shares: Sequence[Sequence[Sequence[MicroBatch]]]) -> list[list[dict[str, Metric]]]:
        """Optimiser steps, each rank with its own share of the micro-batches; returns every rank's metrics, step by step."""
        calls = [learner.train.remote(share) for learner, share in zip(self.learners, shares, strict=True)]
        return wait(calls, self.config.cluster.step_timeout_s, "learning")


@contextmanager
def running(config: RunConfig, model: str, *, learners: bool = True) -> Iterator[Cluster]:
    """Start Ray and every process of a run; end them all on the way out, whatever happened.

    `model` is the folder or hub name that generators and learners load; an evaluation needs no `learners`. Without
    `cluster.address` the Ray cluster is this run's own, on loopback, so that runs beside each other never meet.
    """
    cluster: Cluster | None = None
    started = False
    try:
        with postponed():
            _start_ray(config)
        cluster = _create(config, model, learners=learners)
        _start(cluster)
        started = True
        yield cluster
    finally:
        with uninterrupted():
            if cluster is not None:
                _close(cluster, ask=started)
            ray.shutdown()


def _start_ray(config: RunConfig) -> None:
    if config.cluster.address:
        check_address(config.cluster.address)
        ray.init(address=config.cluster.address, log_to_driver=False, logging_level="ERROR")
        return
    sizes = config.cluster
    ray.init(
        address="local",
        # Ray's CPUs are bookkeeping: a small machine may run more processes than it has cores.
        num_cpus=max(os.cpu_count() or 1, cpus(sizes)),
        object_store_memory=256 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )


def _create(config: RunConfig, model: str, *, learners: bool) -> Cluster:
    sizes, resources = config.cluster, ray.cluster_resources()
    gpus = usable_gpus(resources)
    check_resources(config, int(resources.get("CPU", 0)), gpus, learners=learners)
    transfer, gpu = transport(config, gpus), min(gpus, 1)
    workers = start_env_workers(config)
    generator_gpus = gpu * config.generator.tensor_parallel
    generator_actor = _actor(Generator, threads=sizes.generator_threads, num_gpus=generator_gpus, concurrency=_in_flight(config))
    generators = tuple(
        generator_actor.remote(
            model=model,
            observation_role=config.model.observation_role,
            rollout=config.rollout,
            generator=config.generator,
            host=RemoteHost(workers, sizes.step_timeout_s) if workers else LocalHost(find),
            seed=config.seed + number,
            transfer=transfer,
        )
        for number in range(sizes.generators)
    )
    learner_actor = _actor(LearnerRank, threads=sizes.learner_threads, num_gpus=gpu, concurrency=1)
    ranks = tuple(learner_actor.remote(model, config, rank) for rank in range(sizes.learners if learners else 0))
    return Cluster(generators=generators, learners=ranks, env_workers=workers, config=config, transfer=transfer)


def start_env_workers(config: RunConfig) -> tuple[Any, ...]:
    """Start the environment workers. Ray starts one that dies again, as the episodes it hosted can be played again."""
    sizes = config.cluster
    concurrency = 2 * _in_flight(config) * sizes.generators  # an episode in flight waits for one call, and may have given up another
    env_actor = _actor(EnvWorker, threads=1, num_gpus=0, concurrency=concurrency, max_restarts=_ENV_WORKER_RESTARTS)
    return tuple(env_actor.remote(sizes.env_processes, sizes.env_deadline_s) for _ in range(sizes.env_workers))


def _in_flight(config: RunConfig) -> int:
    """The most episodes that one generator plays at a time."""
    return config.rollout.group_size * max(config.rollout.groups_per_step, 64)


def _actor(plain: type, *, threads: int, num_gpus: float, concurrency: int, max_restarts: int = 0) -> Any:
    environment = {
        "OMP_NUM_THREADS": str(threads),
        # Waiting threads spin for microseconds and then sleep: by default they spin on, and take the core that another
        # process needs, which made a step 20 times slower beside one busy neighbour.
        "GOMP_SPINCOUNT": "10000",
    }
    if not num_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # Ray would let it see all GPUs of its node, and it would take one of others
    # Ray runs at most 1000 calls of an async actor and 1 of a threaded one at a time unless told otherwise.
    return ray.remote(plain).options(
        num_cpus=threads,
        num_gpus=num_gpus,
        max_concurrency=concurrency,
        max_restarts=max_restarts,
        runtime_env={"env_vars": environment},
    )


def _start(cluster: Cluster) -> None:
    timeout_s = cluster.config.cluster.start_timeout_s
    started = [generator.start.remote() for generator in cluster.generators]
    if cluster.learners:
        (meet,) = wait([cluster.learners[0].meet.remote()], timeout_s, "finding an address for the learners")
        started += [learner.join.remote(meet) for learner in cluster.learners]
    started += [worker.ready.remote() for worker in cluster.env_workers]
    wait(started, timeout_s, "starting generators, learners and environment workers")
    connected = [learner.connect.remote(list(cluster.generators), cluster.transfer) for learner in cluster.learners]
    wait(connected, timeout_s, "connecting the learners to the generators")


def _close(cluster: Cluster, *, ask: bool) -> None:
    everyone = [*cluster.generators, *cluster.learners, *cluster.env_workers]
    if ask:
        # They are killed either way; whoever is asked first leaves its groups and ends its own processes in order. An actor that
        # is still starting would answer only when it has started.
        with suppress(ray.exceptions.RayError):
            ray.wait([actor.close.remote() for actor in everyone], num_returns=len(everyone), timeout=_CLOSE_S)
    for actor in everyone:
        with suppress(ray.exceptions.RayError):
            ray.kill(actor)
