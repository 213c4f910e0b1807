"""Loaded before every test of this folder."""

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is empty and the test's own."""
    monkeypatch.chdir(tmp_path)
