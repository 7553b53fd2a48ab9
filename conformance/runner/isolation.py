"""Contains the damage of a test: unprintable exceptions, changed settings and process state, signals, forked processes
and threads.

Process-wide state is saved before each test and restored after it; a framework's own settings are judged by a clause
(`global_state`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from types import FrameType
from typing import Any

import numpy as np
import pytest

from conformance.checks.outcome import Judgement, conclude
from conformance.known_failures.entries import Expectation
from frameworks.contract import Framework
from frameworks.ranks.folders import WorkerGroupFolder
from results.record.files import one_line
from results.record.outcomes import Outcome

LONGEST = 20_000
"""Largest number of characters of a traceback, and of a test's output, in a report."""

PATIENCE_S = 5.0
"""Seconds that a framework's remaining threads may keep the process alive after the session."""

BEAT_S = 0.5
"""Seconds between two checks whether the parent process is alive."""

_CAUSES = 20

Restore = Callable[[], object]


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
def contained(interrupts: Interrupts, timeout_s: float) -> Generator[list[BaseException]]:
    """Runs a test's body, restores the process' state, and yields a list for the exception that ended it.

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


_SINK = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def restore_settings(framework: Framework, before: Mapping[str, str]) -> tuple[str, ...]:
    """Restores the framework's process-wide settings; names those that had changed."""
    after = framework.global_state()
    if after == before:
        return ()
    framework.restore_global_state(before)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return tuple(f"{key}: {before.get(key)} → {after.get(key)}"[:LONGEST] for key in changed)


def judged(framework: Framework, error: BaseException | None, matching: Sequence[Expectation]) -> Judgement:
    """`conclude`, even if the exception's text or the framework's probe raises."""
    try:
        judgement = conclude(framework, error, matching)
        return Judgement(judgement.outcome, *(_sendable(text) for text in astuple(judgement)[1:]))
    except BaseException as problem:
        name, why = type(error).__name__, type(problem).__name__
        return Judgement(Outcome.ERROR, f"raises-{name}", f"{name}: cannot be judged or shown ({why})")


def _sendable(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode("utf-8")


def traceback_of(item: pytest.Item, error: BaseException) -> str:
    """The traceback as pytest shows it, at most `LONGEST` characters of it, or why there is none."""
    try:
        if len(str(error)) > LONGEST or _causes(error) > _CAUSES:
            return "the exception's text or its chain of causes is too long to show"
        return clipped(str(item.repr_failure(pytest.ExceptionInfo.from_exception(error))))
    except BaseException as problem:
        return f"the traceback cannot be shown ({type(problem).__name__})"


def _causes(error: BaseException) -> int:
    count, cause = 0, error.__cause__ or error.__context__
    while cause is not None and count <= _CAUSES:
        count, cause = count + 1, cause.__cause__ or cause.__context__
    return count


def clipped(text: str) -> str:
    """The end of a text, in characters that every terminal accepts."""
    tail = text if len(text) <= LONGEST else f"…{text[-LONGEST:]}"
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in tail)


@contextmanager
def own_temporary_directory() -> Generator[None]:
    """Inside, this process and those that it starts have a temporary directory that goes with all that is left in it.

    So nothing stays of a framework that removes none of its files, or of a worker that was killed. If this process is
    killed, the next run removes the directory.
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
    """Ends the process with `status`, even if remaining threads would keep it alive."""
    left = [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon and t.is_alive()]
    if not left:
        return

    def end() -> None:
        time.sleep(PATIENCE_S)
        with suppress(Exception):
            os.write(2, one_line(f"conformance: ended without waiting for {len(left)} threads").encode() + b"\n")
        os._exit(status)

    threading.Thread(target=end, daemon=True).start()


def end_with_parent() -> None:
    """Ends this process, and the ranks that it has started, once its parent is dead.

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
    """A snapshot of the state; `restore` can be called once."""

    def __init__(self) -> None:
        self._parts = [part() for part in _PARTS]

    def restore(self) -> None:
        """Restores every part that can be restored."""
        for part in self._parts:
            with suppress(Exception):
                part()


class Unclosable:
    """A stream that ignores `close`; everything else is passed on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def close(self) -> None:
        """Flushes the stream."""
        self._stream.flush()

    detach = close

    @property
    def buffer(self) -> Unclosable:
        """The stream's bytes, which stay open too."""
        return Unclosable(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __enter__(self) -> Unclosable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _streams() -> Restore:
    """The standard streams and the files behind them; while a test runs it cannot close the streams."""
    stored = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    numbers = {0, 1, 2}
    for name, stream in stored.items():
        with suppress(Exception):
            numbers.add(stream.fileno())
        if stream is not None and name != "stdin":
            setattr(sys, name, Unclosable(stream))
    copies = {number: os.dup(number) for number in numbers if _is_open(number)}

    def restore() -> None:
        for name, stream in stored.items():
            setattr(sys, name, stream)
        for number, copy in copies.items():
            with suppress(OSError):
                os.dup2(copy, number, inheritable=number < 3)
                os.close(copy)

    return restore


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _folder() -> Restore:
    folder = os.getcwd()
    return lambda: os.chdir(folder)


def _environment() -> Restore:
    environ, stored = os.environ, dict(os.environ)

    def restore() -> None:
        os.environ = environ  # noqa: B003 - the very object, which os.getenv reads
        for name in environ.keys() - stored.keys():
            del environ[name]
        for name, value in stored.items():
            if environ.get(name) != value:
                environ[name] = value
        time.tzset()

    return restore


def _signals() -> Restore:
    """Handlers, and the alarm clock with the time that is left of it."""
    stored = {number: signal.getsignal(number) for number in signal.valid_signals()}
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    begun = time.monotonic()

    def restore() -> None:
        for number, handler in stored.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        remaining = left - (time.monotonic() - begun)  # an alarm whose time is over has rung: it is not set again
        signal.setitimer(signal.ITIMER_REAL, max(remaining, 0.0), interval)

    return restore


def _errors() -> Restore:
    errors = np.geterr()
    return lambda: np.seterr(**errors)


_PARTS: tuple[Callable[[], Restore], ...] = (_streams, _folder, _environment, _signals, _errors)
