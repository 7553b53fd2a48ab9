"""Isolation of tests from each other: exceptions, settings and process state, signals, forked processes and threads.

Process-wide state is saved before each test and restored after it; a framework's own settings are judged by a clause
(`global_state`).
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
from types import FrameType

import numpy as np
import pytest

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
    """Signals that end a run: each raises KeyboardInterrupt once, as pytest expects, and is recorded.

    Attributes:
        asked: whether one arrived; otherwise a KeyboardInterrupt is the framework's own.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.asked = False
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt


@contextmanager
def isolate_test(interrupts: Interrupts, timeout_s: float) -> Generator[list[BaseException]]:
    """Run a test's body in the context, then restore the process state; yields a list for the exception that ended it.

    A forked copy of the process that returns from the body exits at once. If no exception can end a hanging body, the
    process exits some time after `timeout_s`; 0 means never.

    Raises:
        KeyboardInterrupt: the run is to end.
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
    if interrupts.asked:
        raise KeyboardInterrupt


def restore_settings(framework: Framework, before: Mapping[str, str]) -> tuple[str, ...]:
    """Restore the framework's process-wide settings and return the names of those that had changed."""
    after = framework.global_state()
    if after == before:
        return ()
    framework.restore_global_state(before)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return tuple(f"{key}: {before.get(key)} → {after.get(key)}"[:LONGEST] for key in changed)


def traceback_of(item: pytest.Item, error: BaseException) -> str:
    """Return the traceback in pytest's form, at most `LONGEST` characters, or the reason why there is none."""
    try:
        return clip_text(str(item.repr_failure(pytest.ExceptionInfo.from_exception(error))))
    except Exception as problem:
        return f"the traceback cannot be shown ({type(problem).__name__})"


def clip_text(text: str) -> str:
    """Return the end of a text, in characters that every terminal accepts."""
    tail = text if len(text) <= LONGEST else f"…{text[-LONGEST:]}"
    return printable(tail, "\N{REPLACEMENT CHARACTER}", allowed="\n\t")


@contextmanager
def own_temporary_directory() -> Generator[None]:
    """Within the context, this process and its children use a new temporary directory, which is removed at the end.

    So no files remain from a framework that does not remove its own, or from a worker that was killed. If this process
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
    """End the process with `status`, even if remaining threads would keep it alive."""
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
    """Start a watch that ends this process and the ranks that it has started once its parent is dead.

    A worker of pytest-xdist would do so itself after 5 seconds, or 15 where a test ignores interrupts.
    """
    parent = os.getppid()

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(BEAT_S)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE_S)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class ProcessState:
    """A snapshot of the standard streams, working directory, environment, signal handlers and NumPy's error state."""

    def __init__(self) -> None:
        self._streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
        self._folder = os.getcwd()
        self._environ, self._variables = os.environ, dict(os.environ)
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._errors = np.geterr()

    def restore(self) -> None:
        """Restore everything that has changed since the snapshot."""
        for name, stream in self._streams.items():
            setattr(sys, name, stream)
        with suppress(OSError):
            os.chdir(self._folder)
        os.environ = self._environ  # noqa: B003 - the very object, which os.getenv reads
        for name in os.environ.keys() - self._variables.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in self._variables.items() if os.environ.get(name) != value})
        time.tzset()
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        np.seterr(**self._errors)
