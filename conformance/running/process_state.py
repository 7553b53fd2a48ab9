"""Process-wide state that a test may change: saved before each test and restored after it.

A framework's own settings are judged by a clause instead (`global_state`).
"""

from __future__ import annotations

import builtins
import decimal
import gc
import locale
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

Restore = Callable[[], object]

_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_STACK,
)
_HOOKS = ((sys, "excepthook"), (sys, "unraisablehook"), (sys, "displayhook"), (threading, "excepthook"))


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


def _recursion() -> Restore:
    limit = sys.getrecursionlimit()
    return lambda: sys.setrecursionlimit(limit)


def _builtins() -> Restore:
    stored = dict(vars(builtins))
    return lambda: vars(builtins).update(stored)


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


def _hooks() -> Restore:
    stored = [(place, name, getattr(place, name)) for place, name in _HOOKS]
    trace, profile, interval = sys.gettrace(), sys.getprofile(), sys.getswitchinterval()

    def restore() -> None:
        sys.settrace(trace)
        sys.setprofile(profile)
        sys.setswitchinterval(interval)
        for place, name, hook in stored:
            setattr(place, name, hook)

    return restore


def _numbers() -> Restore:
    context, errors, here = decimal.getcontext().copy(), np.geterr(), locale.setlocale(locale.LC_ALL)

    def restore() -> None:
        decimal.setcontext(context)
        np.seterr(**errors)
        locale.setlocale(locale.LC_ALL, here)

    return restore


def _collector() -> Restore:
    enabled, threshold, debug = gc.isenabled(), gc.get_threshold(), gc.get_debug()

    def restore() -> None:
        (gc.enable if enabled else gc.disable)()
        gc.set_threshold(*threshold)
        gc.set_debug(debug)

    return restore


def _limits() -> Restore:
    stored = {limit: resource.getrlimit(limit) for limit in _LIMITS}

    def restore() -> None:
        for limit, values in stored.items():
            if resource.getrlimit(limit) != values:
                resource.setrlimit(limit, values)

    return restore


def _mask() -> Restore:
    mask = os.umask(0o022)
    os.umask(mask)
    return lambda: os.umask(mask)


def _modules() -> Restore:
    """Restores removed modules and import paths; new ones stay."""
    modules, paths = dict(sys.modules), list(sys.path)

    def restore() -> None:
        for name, module in modules.items():
            if sys.modules.get(name) is None:
                sys.modules[name] = module
        if not set(paths) <= set(sys.path):
            sys.path[:] = paths

    return restore


_PARTS = (
    _recursion,
    _builtins,
    _limits,
    _streams,
    _hooks,
    _folder,
    _environment,
    _signals,
    _numbers,
    _collector,
    _mask,
    _modules,
)
