"""Plugins for workers of pytest-xdist that end early: before they have collected the tests, or with few mappings left.

Another plugin counts the compiled programs that all workers took from the cache folder.
"""

import os
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from frameworks.cache_folder import PROGRAMS

MOST = 4
"""Largest number of workers that may end before they have collected the tests."""

SHARE = 0.7
"""Share of the memory mappings that Linux allows a process; a worker with more is replaced."""

EVERY = 4
"""Number of tests between two counts of memory mappings; counting takes a microsecond for each mapping."""

_REPLACES = "conformance-replaces"
_PROGRAMS = "conformance-programs"


class LostWorkers:
    """Ends a run with one line if its workers cannot start; ends the workers at once if the run is interrupted.

    Without it, pytest-xdist starts worker after worker or shows an internal error, and waits 5 seconds for a test.
    """

    def __init__(self) -> None:
        self._collected: set[str] = set()
        self._lost = 0
        self._nodes: list[Any] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self) -> Generator[None, Any, Any]:
        """Starts the workers."""
        return (yield from _guard_start())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        """Starts replacements."""
        return (yield from _guard_start())

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker has started."""
        self._nodes.append(node)

    def pytest_keyboard_interrupt(self) -> None:
        """Interrupts the workers too."""
        for process in (getattr(node.gateway._io, "popen", None) for node in self._nodes):
            if process is not None:
                process.send_signal(signal.SIGINT)

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


class FullWorkers:
    """Replaces a worker before Linux refuses it more memory mappings, because TensorFlow frees no program of XLA's.

    Plugin of every process: the worker ends between two tests, and the controller hands its next test on.

    Args:
        serial: whether each worker has a fixed share of the tests, so that none can be handed on.
    """

    def __init__(self, config: pytest.Config, *, serial: bool) -> None:
        handed_on = getattr(config.option, "dist", "no") in ("load", "worksteal") and not serial
        self._input: dict[str, Any] = getattr(config, "workerinput", {})
        self._replaces = bool(self._input.get(_REPLACES, handed_on))
        self._config = config
        self._tests = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send each new worker whether it may end."""
        node.workerinput[_REPLACES] = self._replaces

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """End the worker instead of running the test if too few memory mappings are left."""
        self._tests += 1
        if self._input and self._replaces and self._tests % EVERY == 0 and mappings() > SHARE * most_mappings():
            _mark(self._input["workerid"]).touch()
            os._exit(0)
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """Give the test to another worker, and drop the report that pytest-xdist has written for it."""
        worker = report.node.gateway.id
        if _mark(worker).exists():
            _mark(worker).unlink()
            sched.mark_test_pending(crashitem)
            report.when, report.outcome, report.longrepr = "setup", "passed", None
            terminal = self._config.pluginmanager.getplugin("terminalreporter")
            terminal.write_line(
                f"worker {worker} nears the limit of memory mappings (vm.max_map_count); a new one takes its tests"
            )


class CachedPrograms:
    """Plugin of every process: a worker reports its counts as it ends, and the controller prints the sum."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report the counts of a worker."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_PROGRAMS] = [PROGRAMS.asked, PROGRAMS.hits]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the counts of a worker; a worker that died reports nothing."""
        requests, hits = (getattr(node, "workeroutput", None) or {}).get(_PROGRAMS, (0, 0))
        PROGRAMS.asked += requests
        PROGRAMS.hits += hits

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the sum, if any program was requested."""
        if PROGRAMS.asked:
            terminalreporter.line(f"compiled programs from the cache: {PROGRAMS.hits} of {PROGRAMS.asked}")


def _mark(worker: str) -> Path:
    """Return the path of the file that a worker leaves in the run's temporary directory as it ends."""
    return Path(tempfile.gettempdir()) / f"full-{worker}"


def mappings() -> int:
    """Return the number of this process's memory mappings; 0 if the system does not report it."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def most_mappings() -> int:
    """Return the number of mappings that Linux allows a process (`vm.max_map_count`); the default if unreadable."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text("ascii"))
    except (OSError, ValueError):
        return 65_530


def _guard_start() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except (EOFError, OSError) as error:
        raised_in = pytest.ExceptionInfo.from_exception(error).traceback[-1].frame.f_globals
        if not str(raised_in.get("__name__")).startswith("execnet."):
            raise
        _give_up("a worker ended at its start")


def _give_up(what: str) -> NoReturn:
    pytest.exit(f"{what}; find out what kills them, such as a lack of memory, and run again", returncode=2)
