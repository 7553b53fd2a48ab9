"""Fixtures that several modules of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.journal import Journal
from tests.recorded import filled, header


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """The record of a whole run."""
    return filled(Journal.create(tmp_path / "torch.json", header())).finish()
