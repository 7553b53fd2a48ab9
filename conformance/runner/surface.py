"""`--surface FILE`: records which parameters of the framework's public callables a run sets."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.surface.listing import Listing, watched
from conformance.surface.scope import scope_of
from conformance.surface.usage import from_lines, store
from conformance.test_ids.inventory import code_of
from frameworks import calls
from frameworks.registry import UnknownFramework
from results.record.files import one_line

_ROOT = Path(__file__).parents[2]


class RecordingPause:
    """Plugin of every process: records nothing while times are measured.

    Args:
        clauses: those whose tests measure time.
    """

    def __init__(self, clauses: Collection[str]) -> None:
        self._clauses = clauses

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Runs a test, unrecorded if it measures time."""
        code = code_of(item.nodeid)
        if code is None or code.clause not in self._clauses:
            return (yield)
        with calls.paused():
            return (yield)


class Surface:
    """Plugin of the controller: starts the recording in this and all later processes, and writes the file at the end.

    Args:
        framework: as the user named it.
    Raises:
        UnknownFramework: its callables cannot be listed.
        RecordError: its surface.toml cannot be read.
    """

    def __init__(self, config: pytest.Config, framework: str, file: Path) -> None:
        self._file, self._folder = file, Path(tempfile.mkdtemp(prefix="surface-"))
        scope = scope_of(framework)
        self._listing = _listing(framework)
        (self._folder / calls.LINES).touch()
        (self._folder / calls.WATCHED).write_bytes(msgspec.json.encode(watched(self._listing, scope)))
        os.environ[calls.FOLDER] = str(self._folder)
        config.add_cleanup(calls.stop)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Writes the file."""
        with (self._folder / calls.LINES).open(encoding="utf-8") as lines:
            store(self._file, from_lines(self._listing, lines))


def _listing(framework: str) -> Listing:
    """The callables, listed in another process, so that this one imports what it always does."""
    command = [sys.executable, "-m", "conformance", "surface", framework, "--json"]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, check=False)
    if ended.returncode:
        words = ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {ended.returncode}"]
        raise UnknownFramework(one_line(words[-1].removeprefix("conformance: ")))
    return msgspec.json.decode(ended.stdout, type=Listing)
