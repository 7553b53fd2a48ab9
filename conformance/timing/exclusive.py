"""Exclusive timing: no other worker of the same run works meanwhile, since workers share processors, caches and memory.

A worker that has joined runs every test within `entered`; timing within it (`alone`) waits until the others are between
two tests, and they wait for it. A run in a single process, or without POSIX locks, does not join and does not wait.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Workers:
    """Coordinates the workers of one run with two locked files: `door`, taken by one at a time, and `room`.

    A test takes the door briefly and shares the room; exclusive timing keeps the door, so that nobody enters, until the
    room is empty.

    Args:
        folder: a folder shared by all workers.
    """

    def __init__(self, folder: Path) -> None:
        self._door, self._room = (os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in ("door", "room"))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Shares the room."""
        self._enter()
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Has the room exclusively, from within `entered`."""
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
    """Registers this process as a worker; all workers name the same folder."""
    if fcntl is not None:
        _joined[:] = [Workers(folder)]


def entered() -> AbstractContextManager[None]:
    """Covers one test."""
    return _joined[0].entered() if _joined else nullcontext()


def alone() -> AbstractContextManager[None]:
    """Within a test, a period without other workers' tests."""
    return _joined[0].alone() if _joined else nullcontext()
