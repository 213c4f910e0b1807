"""`pickaxe` as a person types it."""

from collections.abc import Sequence

import pytest

from cluster.cli import main


def status(arguments: Sequence[str]) -> int:
    """The exit status of `pickaxe ARGUMENTS`."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)
