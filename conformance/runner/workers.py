"""Workers of pytest-xdist that die before they have collected the tests."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NoReturn

import pytest

MOST = 4
"""Largest number of such workers before the run ends."""


class LostWorkers:
    """Ends the run with one line; pytest-xdist would start worker after worker or show an internal error."""

    def __init__(self) -> None:
        self._collected: set[str] = set()
        self._lost = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self) -> Generator[None, Any, Any]:
        """Starts the workers."""
        return (yield from _started())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        """Starts replacements."""
        return (yield from _started())

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """A worker has collected the tests."""
        self._collected.add(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker has ended, with an error unless it was asked to."""
        self._lost += bool(error) and node.gateway.id not in self._collected
        if self._lost >= MOST:
            _give_up(f"{self._lost} workers ended before they had collected the tests")


def _started() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except (EOFError, OSError) as error:
        raised_in = pytest.ExceptionInfo.from_exception(error).traceback[-1].frame.f_globals
        if not str(raised_in.get("__name__")).startswith("execnet."):
            raise
        _give_up("a worker ended at its start")


def _give_up(what: str) -> NoReturn:
    pytest.exit(f"{what}; find out what kills them, such as a lack of memory, and run again", returncode=2)
