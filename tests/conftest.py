"""Fixtures that several modules of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.journal import Journal
from tests.recorded import filled, header
from tests.runner import Runner


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """The record of a whole run."""
    return filled(Journal.create(tmp_path / "torch.json", header())).finish()


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A runner on which nothing has run."""
    (tmp_path / "suite" / "results" / "records").mkdir(parents=True)
    (tmp_path / "log").touch()
    return Runner(tmp_path)
