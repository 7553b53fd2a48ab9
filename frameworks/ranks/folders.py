"""Folders of worker groups, locked by their process; stale ones are removed by a later group."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "ranks-"
_LOCK = "owner"


class WorkerGroupFolder:
    """An empty folder for this process.

    Attributes:
        path: of the folder.
    """

    def __init__(self, prefix: str = PREFIX) -> None:
        """Creates the folder, and removes those with this prefix of dead processes."""
        _remove_stale(Path(tempfile.gettempdir()), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        new = self.path / "locking"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Removes the folder and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.let_go()

    def let_go(self) -> None:
        """Closes the lock; another process that has it open keeps it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_stale(among: Path, prefix: str) -> None:
    for folder in among.glob(f"{prefix}*"):
        with suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                _remove_if_stale(folder)


def _remove_if_stale(folder: Path) -> None:
    """Removes a folder with a free lock; one without a lock is being created, or is not a worker group's.

    Raises:
        OSError: it has no lock, or the lock is taken.
    """
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
