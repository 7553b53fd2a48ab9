"""The processes of one run, found by a mark in their environment, as Linux shows it in /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "CONFORMANCE_KILLED_RUN"
"""The variable that every process of a run inherits."""

KINDS = ("pytest", "worker", "rank")
"""What is killed: the process that was started, the one that runs the tests, and one that is a rank."""

_PROC = Path("/proc")
_EXECNET = "import sys;exec(eval(sys.stdin.readline()))"
"""What a worker of pytest-xdist is started with."""


@dataclass(frozen=True)
class Process:
    """A process of the run, its parent, and the words that it was started with."""

    pid: int
    parent: int
    words: tuple[str, ...]


def marked(mark: str) -> dict[int, Process]:
    """All living processes of a run, by number; one that has ended and waits to be reaped does not count."""
    found: dict[int, Process] = {}
    wanted = f"{MARK}={mark}".encode()
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            if wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            parent = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            found[int(folder.name)] = Process(int(folder.name), int(parent), tuple(words))
    return found


def of_kind(kind: str, first: int, processes: dict[int, Process]) -> list[int]:
    """The numbers of the run's processes of one of `KINDS`, in order; `first` is pytest's."""
    match kind:
        case "pytest":
            return [first]
        case "worker":
            return sorted(p.pid for p in processes.values() if p.parent == first and _EXECNET in p.words)
        case _:
            return sorted(p.pid for p in processes.values() if "frameworks.ranks.member" in p.words)


def below(pid: int, processes: dict[int, Process]) -> set[int]:
    """The processes that this one has started, and all that these have."""
    children = {p.pid for p in processes.values() if p.parent == pid}
    return children.union(*(below(child, processes) for child in children))


def gone_after(mark: str, pids: Collection[int] | None, limit_s: float) -> tuple[float, int]:
    """Waits until these processes of a run are gone, all of them for None.

    Returns:
        How many seconds that took, and how many are left at the end of the limit.
    """
    began = time.monotonic()
    while True:
        living = marked(mark)
        left = len(living) if pids is None else len(living.keys() & set(pids))
        passed = time.monotonic() - began
        if not left or passed > limit_s:
            return passed, left
        time.sleep(0.05)


def kill(pids: Collection[int]) -> None:
    """Ends processes of the run, if they are there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
