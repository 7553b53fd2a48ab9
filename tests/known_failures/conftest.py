"""Fixtures of tests of known failures."""

from pathlib import Path

import pytest

from tests.support.twin_records import write_expectations


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An adapter's file."""
    return write_expectations(tmp_path)
