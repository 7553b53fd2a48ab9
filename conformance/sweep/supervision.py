"""Commands with a time limit whose processes all end: children in new sessions too, and when the parent dies."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

MARKER = "CONFORMANCE_SWEEP_CELL"
"""Environment variable of every process of a cell: the sweep's digest, "-", and the cell's."""

GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""

PATIENCE_S = 10.0
"""Seconds that killed processes have to end."""

TAIL = 20_000
"""Bytes of the end of a command's output that are kept."""

_SET_CHILD_SUBREAPER = 36
_STARTING = threading.RLock()
_PROC = Path("/proc")


@dataclass(frozen=True)
class Finished:
    """The end of a command.

    Attributes:
        status: its exit status, negative for a signal; None at the time limit.
        output: the end of what it printed.
    """

    status: int | None
    output: str

    @property
    def last_line(self) -> str:
        """The last line of the output that is not empty."""
        return next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")


def adopt_orphans() -> None:
    """Makes orphans among this process' descendants its children, where the system can (Linux)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(pipe: int, folder: Path) -> None:
    """Ends this process, its descendants and a folder as soon as a pipe closes, whose other end the parent has."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(pipe, 4096):
                pass
        end_here(folder)

    threading.Thread(target=wait, daemon=True).start()


def end_here(folder: Path) -> NoReturn:
    """Ends all processes of this cell, this one last, and removes the cell's folder; no other starts meanwhile."""
    with _STARTING:
        marker = os.environ.get(MARKER, "")
        _end(lambda: _descendants(os.getpid()) | ({*marked(marker)} if marker else set()))
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def await_end() -> None:
    """Does not return if `end_here` is at work in another thread."""
    with _STARTING:
        pass


def run(
    command: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str], folder: Path | str = "."
) -> Finished:
    """Runs a command in a new process group; no process that it started is left when this returns or raises.

    Args:
        log: file for its output.
        limit_s: SIGTERM comes after it, SIGKILL `GRACE_S` later.
    """
    with log.open("wb") as file, _STARTING:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    late = False
    try:
        try:
            process.wait(max(limit_s, 0.0))
        except subprocess.TimeoutExpired:
            late = True
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    finally:
        await_end()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end_descendants()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        output = file.read().decode("utf-8", "replace")
    return Finished(None if late else process.returncode, output)


def end_marked(marker: str) -> None:
    """Kills all processes with a marker, or one that begins with it and "-", until there is none."""
    _end(lambda: {*marked(marker)})


def end_descendants() -> None:
    """Kills all descendants of this process until there is none.

    It takes the exit status of all children, so no other thread may wait for one meanwhile.
    """
    _end(lambda: _descendants(os.getpid()), reaping=True)


def _end(alive: Callable[[], set[int]], *, reaping: bool = False) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        left = alive() - {os.getpid()}
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if reaping:
            _reap()
        if not left:
            return
        time.sleep(0.02)


def marked(marker: str) -> Iterator[int]:
    """The live processes of this user whose environment has this marker, or one that begins with it and "-"."""
    whole = f"{MARKER}={marker}".encode()
    for pid in _numbers():
        try:
            values = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(value == whole or value.startswith(whole + b"-") for value in values) and _state(pid)[0] not in "ZX":
            yield pid


def _descendants(parent: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid in _numbers():
        state, above = _state(pid)
        if state not in "ZX":
            children.setdefault(above, []).append(pid)
    result, due = set[int](), [parent]
    while due:
        for child in children.get(due.pop(), ()):
            if child not in result:
                result.add(child)
                due.append(child)
    return result


def _numbers() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return []


def _state(pid: int) -> tuple[str, int]:
    """State and parent of a process; ("X", 0) if there is none."""
    try:
        words = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return words[0], int(words[1])
    except (OSError, IndexError, ValueError):
        return "X", 0


def _reap() -> None:
    """Takes the exit status of children that have ended, adopted ones too."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
