"""The cache of derived data between runs: bounds and compiled programs. It may be emptied at any time."""

import os
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

CACHE_FOLDER = "CONFORMANCE_CACHE"


@dataclass
class Uses:
    """Number of stored programs that this process requested, and number that it found."""

    asked: int = 0
    hits: int = 0


PROGRAMS = Uses()
"""Uses of stored compiled programs. A framework that ignores a stored program does so silently; the count shows it."""


def cache_folder() -> Path:
    """The cache folder: CONFORMANCE_CACHE, else results/cache of a checkout, else a folder in the user's cache."""
    if named := os.environ.get(CACHE_FOLDER):
        return Path(named)
    root = Path(__file__).parents[1]
    if root.parts[-2:] == ("conformance", "tree"):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-conformance"
    return root / "results" / "cache"


def prune(folder: Path, largest: int) -> None:
    """If the folder has more than `largest` bytes, removes its least recently used files until half of that is left.

    Other processes may use the files at the same time; they derive a removed file again.
    """
    files = []
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if S_ISREG(status.st_mode):
            files.append((max(status.st_atime_ns, status.st_mtime_ns), status.st_size, path))
    size = sum(length for _, length, _ in files)
    if size <= largest:
        return
    for _, length, path in sorted(files):
        if size <= largest // 2:
            return
        path.unlink(missing_ok=True)
        size -= length
