"""Cache of derived data between runs: bounds, compiled programs. It may be emptied at any time."""

import os
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

CACHE_FOLDER = "CONFORMANCE_CACHE"


@dataclass
class Uses:
    """How often this process asked for a stored program, and how often it got one."""

    asked: int = 0
    hits: int = 0


PROGRAMS = Uses()
"""Of compiled programs. A framework that does not take what is stored says nothing, so that only the count shows it."""


def cache_folder() -> Path:
    """The folder that CONFORMANCE_CACHE names, or results/cache of a checkout, or one in the user's cache."""
    if named := os.environ.get(CACHE_FOLDER):
        return Path(named)
    root = Path(__file__).parents[1]
    if root.parts[-2:] == ("conformance", "tree"):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-conformance"
    return root / "results" / "cache"


def prune(folder: Path, largest: int) -> None:
    """If there are more than `largest` bytes, removes files, least recently used first, down to half of it.

    Other processes may use the same files meanwhile; a removed one is derived again.
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
