"""Isolation of tests from each other: process-wide state, signals, forked processes, and workers that end early.

Process-wide state is saved before each test and restored after it; a framework's own settings are judged by a clause
(`global_state`).

Another plugin counts the compiled programs that all workers took from the cache folder.
"""

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import pytest

from frameworks.cache_folder import PROGRAMS
from frameworks.contract import Framework
from frameworks.ranks.worker_group import WorkerGroupFolder
from results.record.files import one_line, printable

LONGEST = 20_000
"""Largest number of characters of a traceback, and of a test's output, in a report."""

PATIENCE_S = 5.0
"""Seconds that a framework's remaining threads may keep the process alive after the session."""

BEAT_S = 0.5
"""Seconds between two checks whether the parent process is alive."""
_SINK = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


class Interrupts:
    """Signals that end a run: they raise KeyboardInterrupt, as pytest expects, and are noted.

    Attributes:
        has_arrived: whether one arrived; otherwise a KeyboardInterrupt is the framework's own.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.has_arrived = False
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.has_arrived = True
        raise KeyboardInterrupt


@contextmanager
def isolate_test(interrupts: Interrupts, timeout_s: float) -> Generator[list[BaseException]]:
    """Run a test's body in the context, then restore the process state; yield a list for the exception that ended it.

    A forked copy of the process that returns from the body exits at once. If a body hangs and no exception can end it,
    the process exits some time after `timeout_s` seconds; 0 means never.

    Raises:
        KeyboardInterrupt: a signal asked for the end of the run.
    """
    errors: list[BaseException] = []
    process, state = os.getpid(), ProcessState()
    if timeout_s:
        faulthandler.dump_traceback_later(1.25 * timeout_s + 2.0, exit=True, file=_SINK)
    try:
        yield errors
    except BaseException as error:
        errors.append(error)
    finally:
        if os.getpid() != process:
            os._exit(0)
        faulthandler.cancel_dump_traceback_later()
        state.restore()
    if interrupts.has_arrived:
        raise KeyboardInterrupt


def restore_settings(framework: Framework, before: Mapping[str, str]) -> tuple[str, ...]:
    """Restore the framework's process-wide settings; return "NAME: BEFORE → AFTER" for each that had changed."""
    after = framework.global_state()
    if after == before:
        return ()
    framework.restore_global_state(before)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return tuple(f"{key}: {before.get(key)} → {after.get(key)}"[:LONGEST] for key in changed)


def format_traceback(item: pytest.Item, error: BaseException) -> str:
    """Return the traceback in pytest's form, at most `LONGEST` characters, or the reason why there is none."""
    try:
        return clip_text(str(item.repr_failure(pytest.ExceptionInfo.from_exception(error))))
    except Exception as problem:
        return f"the traceback cannot be shown ({type(problem).__name__})"


def clip_text(text: str) -> str:
    """Return the last `LONGEST` characters of a text; U+FFFD replaces those that a terminal may act on."""
    tail = text if len(text) <= LONGEST else f"…{text[-LONGEST:]}"
    return printable(tail, "\N{REPLACEMENT CHARACTER}", allowed="\n\t")


@contextmanager
def use_own_temporary_directory() -> Generator[None]:
    """Within the context, this process and its children use a new temporary directory, which is removed at the end.

    This removes the files of frameworks that do not remove their own, and of workers that were killed. If this process
    is killed, the next run removes the directory.
    """
    folder = WorkerGroupFolder("conformance-")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(folder.path))
            patch.setattr(tempfile, "tempdir", str(folder.path))
            yield
    finally:
        folder.remove()


def end_despite_threads(status: int) -> None:
    """Make the process end with `status` within `PATIENCE_S`, even if remaining threads would keep it alive."""
    remaining = [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon and t.is_alive()]
    if not remaining:
        return

    def end() -> None:
        time.sleep(PATIENCE_S)
        with suppress(Exception):
            os.write(2, one_line(f"conformance: ended without waiting for {len(remaining)} threads").encode() + b"\n")
        os._exit(status)

    threading.Thread(target=end, daemon=True).start()


def end_with_parent() -> None:
    """Start a thread that ends this process, and the ranks that it has started, once its parent is dead.

    A worker of pytest-xdist would end by itself after 5 seconds, or 15 if a test ignores interrupts.
    """
    parent = os.getppid()

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(BEAT_S)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE_S)
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()


class ProcessState:
    """A snapshot of the standard streams, working directory, environment, signal handlers and NumPy's error state."""

    def __init__(self) -> None:
        self._streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
        self._folder = os.getcwd()
        self._environ, self._variables = os.environ, dict(os.environ)
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._errors = np.geterr()

    def restore(self) -> None:
        """Restore whatever has changed since the snapshot."""
        for name, stream in self._streams.items():
            setattr(sys, name, stream)
        with suppress(OSError):
            os.chdir(self._folder)
        os.environ = self._environ  # noqa: B003 - the original object, which os.getenv reads
        for name in os.environ.keys() - self._variables.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in self._variables.items() if os.environ.get(name) != value})
        time.tzset()
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        np.seterr(**self._errors)


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
