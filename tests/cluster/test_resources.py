"""A run that does not fit into its cluster is refused with numbers, before any process waits for a place."""

import pytest

from cluster.load_config import load_config
from cluster.resources import check_address, check_resources, transport
from envs.errors import InputError

WANTS_FIVE = ("cluster.generators=2", "generator.tensor_parallel=2", "cluster.learners=1")


@pytest.mark.parametrize(
    ("overrides", "cpus", "gpus", "learners", "words"),
    [
        (WANTS_FIVE, 64, 5, True, None),
        (WANTS_FIVE, 64, 4, False, None),
        (WANTS_FIVE, 64, 0, True, None),
        (WANTS_FIVE, 64, 4, True, r"takes 5 GPUs, cluster\.generators=2 times generator\.tensor_parallel=2 and 1 .* has 4; lower"),
        ((), 64, 1, True, r"takes 2 GPUs.* has 1; lower these numbers, .* CUDA_VISIBLE_DEVICES"),
        (("cluster.transfer=nccl",), 64, 0, True, r"set cluster\.transfer=auto"),
        (("cluster.learners=3", "cluster.env_workers=2"), 8, 0, True, r"takes 9 CPUs.* has 8; lower"),
        (("cluster.learners=3", "cluster.env_workers=2"), 8, 0, False, None),
    ],
)
def test_a_run_fits_or_says_what_it_takes(overrides: tuple[str, ...], cpus: int, gpus: int, learners: bool, words: str | None) -> None:
    config = load_config("number-search-tiny", list(overrides))
    if words is None:
        check_resources(config, cpus, gpus, learners=learners)
        return
    with pytest.raises(InputError, match=words):
        check_resources(config, cpus, gpus, learners=learners)


def test_weights_travel_as_the_cluster_allows_unless_told_otherwise() -> None:
    config = load_config("number-search-tiny")
    assert (transport(config, 0), transport(config, 2)) == ("gloo", "nccl")
    assert transport(load_config("number-search-tiny", ["cluster.transfer=gloo"]), 2) == "gloo"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:99999999", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_answers_is_refused_at_once(address: str) -> None:
    with pytest.raises(InputError, match=r"does not answer .* expected host:port"):
        check_address(address)
