"""Environments of cells: virtual environments in a cache, named by their locks; the least recently used go first."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sysconfig
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from frameworks.cache_folder import cache_folder
from frameworks.installer import locks, pip
from frameworks.installer.distributions import InstallerInterrupted, Unavailable
from frameworks.installer.request import redacted
from frameworks.installer.resolution import Lock
from results.record.files import replace

LARGEST = 40 * 2**30
"""Bytes of all environments, unless the user sets another limit."""

_READY = "ready.json"


def environments_folder() -> Path:
    """Where environments are: in the suite's cache."""
    return cache_folder() / "environments"


@dataclass(frozen=True)
class EnvironmentCache:
    """Environments in a folder.

    Attributes:
        largest: bytes of all of them together, beyond which those that nobody uses are removed.
        beneath: site-packages with the suite's packages, which environments then see and need not install; "" for none.
    """

    folder: Path
    largest: int = LARGEST
    beneath: str = ""

    @contextmanager
    def using(self, lock: Lock) -> Iterator[Path]:
        """The Python of the environment with a lock, made if it is missing; it is not removed within the context.

        Raises:
            Unavailable: it cannot be installed. InstallerInterrupted: the installer did not finish.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / lock.name
        with locked(self._guard(lock.name), fcntl.LOCK_SH) as guard:
            while not (place / _READY).is_file():
                fcntl.flock(guard, fcntl.LOCK_EX)
                if not (place / _READY).is_file():
                    self._make(place, lock)
                fcntl.flock(guard, fcntl.LOCK_SH)
            os.utime(place / _READY)
            self.evict()
            yield python_of(place)

    def ready(self, lock: Lock) -> bool:
        """Whether the environment is there."""
        return (self.folder / lock.name / _READY).is_file()

    def evict(self) -> list[str]:
        """Removes environments that nobody uses, least recently used first, down to the limit; returns their names."""
        there = []
        for ready in self.folder.glob(f"*/{_READY}"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                there.append((ready.stat().st_mtime, int(json.loads(ready.read_bytes())["bytes"]), ready.parent.name))
        size, removed = sum(each[1] for each in there), []
        for _, length, name in sorted(there):
            if size <= self.largest:
                break
            with suppress(BlockingIOError), locked(self._guard(name), fcntl.LOCK_EX | fcntl.LOCK_NB):
                _discard(self.folder / name)
                size -= length
                removed.append(name)
        return removed

    def _guard(self, name: str) -> Path:
        return self.folder / f"{name}.lock"

    def _make(self, place: Path, lock: Lock) -> None:
        _discard(place)
        begun = time.monotonic()
        try:
            venv.EnvBuilder(symlinks=True, with_pip=False).create(place)
            if self.beneath:
                (site_packages(place) / "conformance-beneath.pth").write_text(f"{self.beneath}\n", encoding="utf-8")
            words = ["--no-compile"] if not pip.by_uv() else []
            pip.install(lock.requirements, lock.pins, lock.indexes, str(python_of(place)), words)
            self._check(place, lock)
        except BaseException as error:
            _discard(place)
            if isinstance(error, Unavailable) and not isinstance(error, InstallerInterrupted):
                raise Unavailable(redacted(str(error))) from None
            raise
        content = {
            "requirements": [*lock.requirements],
            "pins": dict(lock.pins),
            "bytes": _bytes_of(place),
            "seconds": round(time.monotonic() - begun, 1),
        }
        replace(place / _READY, json.dumps(content, indent=1).encode())

    def _check(self, place: Path, lock: Lock) -> None:
        """Whether an environment has what its lock asks for by name; installers put that last.

        Raises:
            InstallerInterrupted: something is missing.
        """
        wanted = {canonicalize_name(each.name): each for each in map(Requirement, lock.requirements)}
        names = [name for name, each in wanted.items() if each.marker is None or each.marker.evaluate()]
        path = [str(site_packages(place)), *filter(None, [self.beneath])]
        for name in names:
            there = next((each.version for each in distributions(name=name, path=path)), "")
            pinned = lock.pins.get(name, "")
            if not there or (pinned and not locks.same(there, pinned)):
                raise InstallerInterrupted(f"the installer left {name} {there or 'out'}, want {pinned or 'it'}")


def python_of(place: Path) -> Path:
    """The interpreter of an environment."""
    return place / "bin" / "python"


def site_packages(place: Path) -> Path:
    """The folder of an environment's packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))


@contextmanager
def locked(path: Path, kind: int) -> Iterator[int]:
    """An open file under a lock of `fcntl.flock`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        os.close(descriptor)


def _discard(place: Path) -> None:
    """Removes an environment; first what says that it is whole."""
    with suppress(FileNotFoundError):
        (place / _READY).unlink()
    shutil.rmtree(place, ignore_errors=True)


def _bytes_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
