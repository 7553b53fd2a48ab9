"""Runs a sweep: every cell once, in an engine, with a journal, until each has a record or a reason."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.runner.subprocesses import ending_signals
from conformance.sweep import launching
from conformance.sweep.cell_locks import CellLocks
from conformance.sweep.cells import SweepCell
from conformance.sweep.engines import CellEngine, NoEngine
from conformance.sweep.environments import LARGEST
from conformance.sweep.journal import CellEnding, SweepJournal, asked_of, opened
from conformance.sweep.plan import SweepPlan
from conformance.sweep.requests import CellRequest, CellResult
from frameworks.installer.resolution import Lock
from results.record.files import inside, one_line
from results.record.files import replace as replace_file

RECORDS, OUTCOMES, LOCKS, LOGS = "records", "outcomes.json", "locks", "logs"
ATTEMPTS = 3
"""How often a cell is started whose worker or machine was lost."""

_WRITE_S = 2.0
"""Seconds between two versions of `outcomes.json` while cells end."""


@dataclass(frozen=True)
class SweepSettings:
    """What is not part of a plan.

    Attributes:
        folder: of the sweep.
        workers: processes of the suite in each cell.
        beneath: site-packages with the suite's packages, "" for none.
        largest: bytes of all environments.
        fresh: whether verdicts of earlier runs are ignored.
        retry: whether cells that were not judged are tried again.
        path: folders from which adapters are imported, as in PYTHONPATH.
    """

    folder: Path
    workers: int = 2
    beneath: str = ""
    largest: int = LARGEST
    fresh: bool = False
    retry: bool = False
    path: str = ""

    @property
    def sweep(self) -> str:
        """Digest of the folder, 8 hexadecimal digits; processes and temporary folders of the sweep have it."""
        return hashlib.sha256(os.path.realpath(self.folder).encode()).hexdigest()[:8]

    @property
    def locks(self) -> CellLocks:
        """The locks of the sweep's environments."""
        return CellLocks(self.folder / LOCKS, suite=not self.beneath)


def request_of(
    cell: SweepCell, plan: SweepPlan, settings: SweepSettings, lock: Lock | None, attempt: int = 1
) -> CellRequest:
    """The request to judge a cell."""
    return CellRequest(
        cell,
        lock,
        f"{settings.sweep}-{cell.key}-{attempt}",
        replace(plan, groups=()),
        settings.workers,
        settings.beneath,
        settings.largest,
        settings.fresh,
        settings.path if ":" in cell.framework else "",
    )


def judge_cell(cell: SweepCell, plan: SweepPlan, settings: SweepSettings) -> CellResult:
    """Judges one cell here, without a journal.

    Raises:
        LostCell: its process ended without a result.
    """
    if cell.outcome:
        return CellResult(cell.outcome, cell.reason)
    lock = settings.locks.read([cell], again=settings.retry)[cell.key]
    if isinstance(lock, str):
        return CellResult("no solution", lock)
    return launching.CellProcesses().judge(request_of(cell, plan, settings, lock))


Tell = Callable[[SweepCell, CellEnding, bool], object]
"""Called with a cell that has ended, how, and whether that was in this run."""


@dataclass
class VersionSweep:
    """One sweep in its folder.

    Attributes:
        cells: all cells of the plan, those that are not judged in this run too.
        chosen: keys of the cells to judge.
        tell: called when a cell has ended.
    """

    plan: SweepPlan
    cells: Sequence[SweepCell]
    settings: SweepSettings
    chosen: frozenset[str]
    tell: Tell

    def run(self, engine: Callable[[], CellEngine]) -> dict[str, CellEnding]:
        """Judges the chosen cells that the journal does not have; the endings of all by key.

        Args:
            engine: starts the engine; it is called if a cell is due.

        Raises:
            NoEngine: the engine cannot be started, or takes a cell not even once.
            RecordBusy: another sweep uses the folder. RecordError: it cannot be written.
        """
        with opened(self.settings.folder) as journal:
            launching.clean(self.settings.sweep)
            self._asked = asked_of(self.plan)
            self._endings = {key: ending for key, ending in journal.endings.items() if ending.answers(self.plan)}
            self._written = 0.0
            try:
                self._run(journal, engine)
            finally:
                self._write_outcomes()
                launching.clean(self.settings.sweep)
            return self._endings

    def _run(self, journal: SweepJournal, engine: Callable[[], CellEngine]) -> None:
        chosen = [cell for cell in self.cells if cell.key in self.chosen]
        for cell in chosen:
            if self._done(cell):
                self.tell(cell, self._endings[cell.key], False)
        due = [cell for cell in chosen if not self._done(cell)]
        locks = self.settings.locks.read([cell for cell in due if not cell.outcome], again=self.settings.retry)
        ready = []
        for cell in due:
            lock = None if cell.outcome else locks[cell.key]
            if cell.outcome:
                self._end(journal, cell, CellResult(cell.outcome, cell.reason), 1)
            elif isinstance(lock, str):
                self._end(journal, cell, CellResult("no solution", lock), 1)
            else:
                ready.append((cell, lock))
        if ready:
            with ending_signals(once=True):
                started = engine()
                try:
                    self._judge(journal, started, {cell.key: (cell, lock) for cell, lock in ready})
                finally:
                    started.close()

    def _judge(
        self, journal: SweepJournal, engine: CellEngine, due: Mapping[str, tuple[SweepCell, Lock | None]]
    ) -> None:
        attempts = dict.fromkeys(due, 0)

        def submit(key: str) -> None:
            cell, lock = due[key]
            attempt = attempts[key] + 1
            journal.begun(key, cell.name, attempt)
            engine.submit(key, request_of(cell, self.plan, self.settings, lock, attempt))
            attempts[key] = attempt

        for key in due:
            submit(key)
        left = set(due)
        while left:
            key, result = engine.next()
            if key not in left:
                continue
            if isinstance(result, str) and attempts[key] < ATTEMPTS:
                try:
                    submit(key)
                    continue
                except NoEngine as refusal:
                    result = f"{result}; {refusal}"
            if isinstance(result, str):
                times = "once" if attempts[key] == 1 else f"{attempts[key]} times"
                result = CellResult("crash", one_line(f"lost {times} ({result})"))
            left.discard(key)
            self._end(journal, due[key][0], result, attempts[key])

    def _done(self, cell: SweepCell) -> bool:
        ending = self._endings.get(cell.key)
        if ending is None:
            return False
        if ending.outcome != "judged":
            return not self.settings.retry
        return not self.settings.fresh and (self.settings.folder / RECORDS / ending.record).is_file()

    def _end(self, journal: SweepJournal, cell: SweepCell, result: CellResult, attempts: int) -> None:
        name = ""
        if result.record:
            name = f"{cell.name}.json.gz"
            (self.settings.folder / RECORDS).mkdir(exist_ok=True)
            replace_file(inside(self.settings.folder / RECORDS, name), result.record)
        if result.log:
            (self.settings.folder / LOGS).mkdir(exist_ok=True)
            replace_file(inside(self.settings.folder / LOGS, f"{cell.name}.txt"), result.log.encode())
        ending = CellEnding(
            cell.key,
            self._asked,
            result.outcome,
            result.reason,
            name,
            result.ran,
            result.cached,
            attempts,
            dict(result.seconds),
            self.plan.limit_s,
        )
        journal.ended(ending)
        self._endings[cell.key] = ending
        self.tell(cell, ending, True)
        if time.monotonic() > self._written + _WRITE_S:
            self._write_outcomes()

    def _write_outcomes(self) -> None:
        self._written = time.monotonic()
        content = [
            {**cell.document(), "outcome": ending.outcome, "reason": ending.reason, "record": ending.record}
            for cell in self.cells
            if (ending := self._endings.get(cell.key)) is not None
        ]
        text = json.dumps({"version": 1, "cells": content}, indent=1, ensure_ascii=False)
        replace_file(self.settings.folder / OUTCOMES, text.encode() + b"\n")
