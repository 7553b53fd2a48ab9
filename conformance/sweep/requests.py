"""What a cell's process is asked and what it answers: JSON by msgspec, which an engine can send to another machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conformance.sweep.cells import SweepCell
from conformance.sweep.environments import LARGEST
from conformance.sweep.plan import SweepPlan
from frameworks.installer.resolution import Lock

UNAVAILABLE = frozenset({"no wheel", "yanked", "no solution"})
"""Outcomes of cells that nobody can judge here."""

OUT_OF_TIME = "out of time"
"""Outcome of a cell whose limit or budget was too short: it says nothing of the version."""


@dataclass(frozen=True)
class CellRequest:
    """One cell to judge.

    Attributes:
        lock: of its environment, None where nothing is installed.
        marker: of its processes.
        plan: the sweep's, without tables of cells.
        workers: processes of the suite.
        beneath: site-packages with the suite's packages, "" for none.
        largest: bytes of all environments.
        fresh: whether verdicts of earlier runs are ignored.
        path: folders from which the adapter is imported, where it is none of the checkout's.
    """

    cell: SweepCell
    lock: Lock | None
    marker: str
    plan: SweepPlan
    workers: int = 2
    beneath: str = ""
    largest: int = LARGEST
    fresh: bool = False
    path: str = ""


@dataclass(frozen=True)
class CellResult:
    """How a cell ended.

    Attributes:
        outcome: "judged", one of `UNAVAILABLE`, "install failed", "import failed", `OUT_OF_TIME`, "crash" or
            "wrong version".
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
