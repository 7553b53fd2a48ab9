"""Process-wide state that a test may change: saved before each test and restored after it.

A framework's own settings are judged by a clause instead (`global_state`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

Restore = Callable[[], object]


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


_PARTS = (_streams, _folder, _environment, _signals, _errors)
