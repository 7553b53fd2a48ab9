"""Fixtures that several modules of tests share."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from frameworks.installer import install, locks, request, uv
from frameworks.installer.pip import INSTALLER
from results.record.journal import Journal
from tests.support.installers import LOCKS, Installers
from tests.support.recorded import filled, header
from tests.support.runner import Runner
from tools import browser
from tools.browser import Browser

settings.register_profile("without-time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without-time")


@pytest.fixture(autouse=True, scope="session")
def temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests and processes that they kill leave in the temporary directory goes with pytest's own files."""
    folder = str(tmp_path_factory.mktemp("t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


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


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser."""
    with browser.chromium(tmp_path_factory.mktemp("profile")) as result:
        yield result


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed packages, none at first."""
    packages: dict[str, str] = {}
    for module in (locks, install):
        name = "installed_version" if module is locks else "installed"
        monkeypatch.setattr(module, name, packages.get)
    return packages


@pytest.fixture
def pip(here: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installers:  # noqa: ARG001
    """A machine without GPU and without any framework, whose locks are `LOCKS`."""
    made = Installers()
    for variable in list(os.environ):
        if variable.endswith(("_VERSION", "_INDEX", "_REQUIREMENT")) or variable == INSTALLER:
            monkeypatch.delenv(variable)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(request, "driver", lambda: None)
    monkeypatch.setattr(uv, "program", lambda: "uv")
    monkeypatch.setattr(locks, "read", LOCKS.__getitem__)
    monkeypatch.setattr(locks, "examples", LOCKS.__getitem__)
    monkeypatch.setattr(subprocess, "run", made)
    return made
