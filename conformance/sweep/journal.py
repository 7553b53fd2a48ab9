"""The journal of a sweep: one JSON line for each cell that begins or ends, appended and synchronised."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from conformance.spec.clauses import load_clauses
from conformance.sweep.plan import SweepPlan
from conformance.sweep.requests import OUT_OF_TIME
from conformance.test_ids.inventory import inventory
from results.record.files import RecordBusy, RecordError, sync_folder, unwritable
from results.record.journal import now

FILE = "journal.jsonl"


class CellEnding(msgspec.Struct, frozen=True, tag_field="kind", tag="ended"):
    """How a cell ended.

    Attributes:
        cell: its key.
        asked: digest of what else decides its verdicts: selection, seed, revisions of clauses.
        outcome: as `CellResult` has it.
        record: its file in the folder of records, "" without one.
        ran, cached: verdicts of this run, and of earlier ones.
        attempts: how often it was started.
        limit_s: the plan's limit of a cell.
    """

    cell: str
    asked: str
    outcome: str
    reason: str = ""
    record: str = ""
    ran: int = 0
    cached: int = 0
    attempts: int = 1
    seconds: Mapping[str, float] = {}
    limit_s: float = 0.0

    def answers(self, plan: SweepPlan) -> bool:
        """Whether a plan's cell need not be run again: not if its verdicts are other ones, or it has more time now."""
        if self.outcome == OUT_OF_TIME:
            return self.asked == asked_of(plan) and self.limit_s >= plan.limit_s
        return self.asked == asked_of(plan) or self.record == ""


def asked_of(plan: SweepPlan) -> str:
    """Digest of what decides which verdicts a cell has, next to the cell."""
    revisions = sorted((clause.id, clause.revision) for clause in load_clauses().values())
    parts = (plan.selection, plan.seed, plan.repeat, revisions, sorted(code.id for code in inventory().values()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class SweepJournal:
    """A journal that this process alone writes."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @property
    def endings(self) -> dict[str, CellEnding]:
        """The last ending of each cell, by key; a line that a kill cut short is left out."""
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise RecordError(self.path, f"cannot be read ({error})", "check its permissions") from None
        result: dict[str, CellEnding] = {}
        for line in content.splitlines():
            with suppress(msgspec.DecodeError, UnicodeDecodeError):  # of a beginning too
                ending = msgspec.json.decode(line, type=CellEnding)
                result[ending.cell] = ending
        return result

    def begun(self, cell: str, name: str, attempt: int) -> None:
        """Notes that a cell was submitted."""
        self._append({"kind": "begun", "cell": cell, "name": name, "attempt": attempt})

    def ended(self, ending: CellEnding) -> None:
        """Notes how a cell ended."""
        self._append(msgspec.to_builtins(ending))

    def _append(self, content: Mapping[str, Any]) -> None:
        line = json.dumps({**content, "at": now()}).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise unwritable(self.path, error) from None


@contextmanager
def opened(folder: Path) -> Iterator[SweepJournal]:
    """The journal of a sweep's folder, which nobody else can open until the context ends.

    Raises:
        RecordBusy: another sweep uses the folder. RecordError: it cannot be written.
    """
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")  # ends a line that a kill cut short, so that the next one stands alone
        except BlockingIOError:
            remedy = "wait for it to end or choose another --folder"
            raise RecordBusy(path, "another sweep is writing it", remedy) from None
        except OSError as error:
            raise unwritable(path, error) from None
        sync_folder(folder)
        yield SweepJournal(path, descriptor)
    finally:
        os.close(descriptor)
