"""What a run wants of its Ray cluster, and whether that is there: said before a process waits for what never comes."""

import socket
from collections.abc import Mapping

import torch

from cluster.config import ClusterConfig, RunConfig
from envs.errors import InputError

_ANSWER_S = 10.0


def cpus(sizes: ClusterConfig, *, learners: bool = True) -> int:
    """The CPU threads of all processes together; an evaluation has no `learners`."""
    ranks = sizes.learners if learners else 0
    return sizes.generators * sizes.generator_threads + ranks * sizes.learner_threads + sizes.env_workers


def gpus(config: RunConfig, *, learners: bool = True) -> int:
    """The GPUs of all processes together, where the run is on GPUs."""
    return config.cluster.generators * config.generator.tensor_parallel + (config.cluster.learners if learners else 0)


def check_address(address: str) -> None:
    """Raise `InputError` if nothing listens at `host:port` of a Ray cluster, on which Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"cluster.address={address!r} does not answer ({error}); expected host:port as `ray start --head` printed it, reachable from "
            "here. Without cluster.address a run starts a Ray cluster of its own on this machine"
        ) from error


def usable_gpus(resources: Mapping[str, float]) -> int:
    """The GPUs of the whole cluster; the machine that the command is given on may have none. 0 if torch was built without them."""
    return int(resources.get("GPU", 0)) if torch.backends.cuda.is_built() else 0


def transport(config: RunConfig, gpus: int) -> str:
    """How the weights travel in a cluster with so many GPUs: nccl between GPUs, gloo between CPUs, unless the config names one."""
    if config.cluster.transfer != "auto":
        return config.cluster.transfer
    return "nccl" if gpus else "gloo"


def check_resources(config: RunConfig, there_cpus: int, there_gpus: int, *, learners: bool) -> None:
    """Raise `InputError` if the processes do not fit into the cluster: with GPUs, each generator and learner rank has its own.

    Only totals are compared: whether `generator.tensor_parallel` GPUs lie on one node is Ray's to find out.
    """
    sizes, parallel = config.cluster, config.generator.tensor_parallel
    ranks = sizes.learners if learners else 0
    if there_gpus and (wanted := gpus(config, learners=learners)) > there_gpus:
        raise InputError(
            f"the run takes {wanted} GPUs, cluster.generators={sizes.generators} times generator.tensor_parallel={parallel} and "
            f"{ranks} for cluster.learners, but the cluster has {there_gpus}; lower these numbers, give the cluster.address of a "
            "larger one, or run on CPUs alone with CUDA_VISIBLE_DEVICES set to nothing"
        )
    if config.cluster.transfer == "nccl" and not there_gpus:
        raise InputError("cluster.transfer=nccl needs GPUs, and the cluster has none that torch can use; set cluster.transfer=auto")
    if (threads := cpus(sizes, learners=learners)) > there_cpus:
        raise InputError(
            f"the run takes {threads} CPUs, one for each thread of a generator or learner rank and for each environment worker, but the "
            f"cluster has {there_cpus}; lower cluster.generators, cluster.learners, their _threads or cluster.env_workers"
        )
