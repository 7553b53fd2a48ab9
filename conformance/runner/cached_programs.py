"""How many compiled programs a run took from the cache folder, added up over its workers and printed at its end."""

from __future__ import annotations

from typing import Any

import pytest

from frameworks.cache_folder import PROGRAMS

_OUTPUT = "conformance-programs"


class CachedPrograms:
    """Plugin of every process: a worker reports its counts as it ends, and the controller prints the sum."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Reports what a worker has counted."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT] = [PROGRAMS.asked, PROGRAMS.hits]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Adds what a worker has counted; one that died reports nothing."""
        asked, result = (getattr(node, "workeroutput", None) or {}).get(_OUTPUT, (0, 0))
        PROGRAMS.asked += asked
        PROGRAMS.hits += result

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the sum, if anything was asked for."""
        if PROGRAMS.asked:
            terminalreporter.line(f"compiled programs from the cache: {PROGRAMS.hits} of {PROGRAMS.asked}")
