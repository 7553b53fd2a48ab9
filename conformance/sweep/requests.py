"""What a cell's process is asked and what it answers: plain data that an engine can send to another machine."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from frameworks.installer.resolution import Lock

OUTCOMES = (
    "judged",
    "no wheel",
    "yanked",
    "no solution",
    "install failed",
    "import failed",
    "timeout",
    "crash",
    "wrong version",
)
"""The outcomes of a cell."""

UNAVAILABLE = frozenset({"no wheel", "yanked", "no solution"})
"""Outcomes of cells that nobody can judge here."""


@dataclass(frozen=True)
class CellRequest:
    """One cell to judge.

    Attributes:
        cell: as `SweepCell.document` has it.
        lock: of its environment, None where nothing is installed.
        marker: of its processes.
        selection: words for pytest.
        selected: the selection as a record has it.
        limit_s: seconds for the suite.
        seed: of the run.
        repeat: whether verdicts that need action are repeated.
        workers: processes of the suite.
        beneath: site-packages with the suite's packages, "" for none.
        environments, verdicts: folders of the caches, "" for those of the machine where the cell is judged.
        largest: bytes of all environments.
        fresh: whether verdicts of earlier runs are ignored.
        path: folders from which the adapter is imported, where it is none of the checkout's.
    """

    cell: Mapping[str, Any]
    lock: Mapping[str, Any] | None
    marker: str
    selection: tuple[str, ...] = ()
    selected: str = ""
    limit_s: float = 1800.0
    seed: int = 0
    repeat: bool = True
    workers: int = 2
    beneath: str = ""
    environments: str = ""
    verdicts: str = ""
    largest: int = 0
    fresh: bool = False
    path: str = ""

    def encoded(self) -> bytes:
        """Its JSON."""
        return json.dumps(asdict(self)).encode()


def decode_request(content: bytes) -> CellRequest:
    """The request of its JSON."""
    values = json.loads(content)
    return CellRequest(**{**values, "selection": tuple(values["selection"])})


@dataclass(frozen=True)
class CellResult:
    """How a cell ended.

    Attributes:
        outcome: one of `OUTCOMES`.
        reason: one line, "" for judged cells.
        record: a compressed record, b"" without one.
        ran: tests that were run.
        cached: verdicts of earlier runs in the record.
        seconds: by step: "install", "suite".
        log: the end of the output of the step that failed.
    """

    outcome: str
    reason: str = ""
    record: bytes = b""
    ran: int = 0
    cached: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    log: str = ""

    def encoded(self) -> bytes:
        """Its JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({**values, "record": base64.b64encode(self.record).decode()}).encode()


def decode_result(content: bytes) -> CellResult:
    """The result of its JSON."""
    values = json.loads(content)
    return CellResult(**{**values, "record": base64.b64decode(values["record"])})


def lock_document(lock: Lock) -> dict[str, Any]:
    """A lock as JSON."""
    return {**asdict(lock), "requirements": [*lock.requirements], "indexes": [*lock.indexes]}


def read_lock(document: Mapping[str, Any]) -> Lock:
    """The lock of a document.

    Raises:
        TypeError, KeyError: it is none.
    """
    values = {**document, "requirements": tuple(document["requirements"]), "indexes": tuple(document["indexes"])}
    return Lock(**values)
