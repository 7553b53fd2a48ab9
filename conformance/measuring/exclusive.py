"""Takes times while no other worker of the same run is at work: workers share processors, caches and memory.

A worker that has joined passes through `entered` for every test; whoever takes times inside waits (`alone`) until the
others are between two tests, and they wait for it. A run in one process joins nothing and waits for nobody; nor does
one on a system without POSIX locks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Workers:
    """The workers of one run, by two locked files: `door`, which one passes at a time, and `room`.

    A test passes the door and enters the room, which many may share; who wants to be alone stays in the door, so that
    nobody enters, until the room is empty.

    Args:
        folder: one that all of them see.
    """

    def __init__(self, folder: Path) -> None:
        self._door, self._room = (os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in ("door", "room"))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """In the room with others."""
        self._enter()
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Alone in the room, from inside `entered`."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        with self._in_the_door():
            fcntl.flock(self._room, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            self._enter()

    def _enter(self) -> None:
        with self._in_the_door():
            fcntl.flock(self._room, fcntl.LOCK_SH)

    @contextmanager
    def _in_the_door(self) -> Iterator[None]:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)


_joined: list[Workers] = []


def join(folder: Path) -> None:
    """This process is a worker from now on; all of them name the same folder."""
    if fcntl is not None:
        _joined[:] = [Workers(folder)]


def entered() -> AbstractContextManager[None]:
    """The time of one test."""
    return _joined[0].entered() if _joined else nullcontext()


def alone() -> AbstractContextManager[None]:
    """Inside a test: the time in which no other worker's test runs."""
    return _joined[0].alone() if _joined else nullcontext()
