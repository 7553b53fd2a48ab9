"""Fixtures that several modules of tests share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from results.record.reading import Journal
from tests.support.recorded import fill_journal, header
from tools import browser
from tools.browser import Browser

settings.register_profile("without-time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without-time")


@pytest.fixture(autouse=True, scope="session")
def temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Puts the temporary directory of tests and their processes among pytest's own files."""
    folder = str(tmp_path_factory.mktemp("t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """The record of a whole run."""
    return fill_journal(Journal.create(tmp_path / "torch.json", header())).finish()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser."""
    with browser.chromium(tmp_path_factory.mktemp("profile")) as result:
        yield result
