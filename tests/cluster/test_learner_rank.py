"""Where the learner ranks meet is theirs before any of them loads its model."""

import socket

import pytest

from cluster.learner_rank import LearnerRank
from cluster.load_config import load_config


def test_nobody_can_take_the_port_while_the_models_are_loaded() -> None:
    rank = LearnerRank("a model that is not loaded here", load_config("number-search-tiny"), 0)
    meet = rank.meet()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((meet.address, meet.port))
