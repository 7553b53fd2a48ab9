"""Starts a cell's process and waits for its result; imports no framework, so that any engine's worker can call it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from conformance.sweep import supervision
from conformance.sweep.requests import CellRequest, CellResult

ROOT = Path(__file__).parents[2]
PREFIX = "conformance-"
TEMPORARY = "t"
"""Folder of a cell's temporary files, pip's too, which goes with the cell however it ends."""


class LostCell(Exception):
    """A cell's process, its worker or its machine ended without a result."""


class CellProcesses:
    """Cells' processes of this process, which can be ended together."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def judge(self, request: CellRequest) -> CellResult:
        """Judges a cell in a new process.

        Raises:
            LostCell: it ended without a result.
        """
        sweep = request.marker.partition("-")[0]
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{sweep}-"))
        try:
            (folder / "request.json").write_bytes(msgspec.json.encode(request))
            words = [sys.executable, "-m", "conformance.sweep.cell_process", str(folder)]
            (folder / TEMPORARY).mkdir()
            variables = {supervision.MARKER: request.marker, "TMPDIR": str(folder / TEMPORARY)}
            with (folder / "cell.log").open("wb") as log:
                status = self._run(words, variables, log.fileno())
            result = folder / "result.json"
            if status == 0 and result.is_file():
                return msgspec.json.decode(result.read_bytes(), type=CellResult)
            lines = (folder / "cell.log").read_text("utf-8", "replace").strip().splitlines() or [""]
            raise LostCell(f"the cell's process ended with status {status} {lines[-1]}".strip())
        finally:
            supervision.end_marked(request.marker)
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Ends the processes; they end what they started."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _close_input(process)

    def _run(self, words: list[str], variables: dict[str, str], log: int) -> int:
        """The exit status of a command."""
        environment = {**os.environ, **variables}
        with self._lock:
            if self._closed:
                raise LostCell("the sweep has ended")
            process = subprocess.Popen(
                words, cwd=ROOT, env=environment, process_group=0, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
            self._running.add(process)
        try:
            return process.wait()
        finally:
            with self._lock:
                self._running.discard(process)
            _close_input(process)
            process.wait()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    """Ends a cell's process."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def judge_encoded(content: bytes) -> bytes:
    """Judges the cell of an encoded request, for workers of other processes; the encoded result.

    Raises:
        LostCell: it ended without a result.
    """
    return msgspec.json.encode(CellProcesses().judge(msgspec.json.decode(content, type=CellRequest)))


def clean(sweep: str) -> None:
    """Ends what a killed sweep left on this machine: processes and temporary folders."""
    supervision.end_marked(sweep)
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{sweep}-*"):
        shutil.rmtree(folder, ignore_errors=True)
