"""Runs a sweep: every cell that has no record, in an engine, until each has a record or a reason."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.runner.subprocesses import ending_signals
from conformance.sweep.cell import CellRequest, CellResult, finished
from conformance.sweep.engines import CellEngine, NoEngine
from conformance.sweep.plan import SweepCell, SweepPlan
from results.record.files import inside, one_line, unwritable
from results.record.files import replace as replace_file

RECORDS, OUTCOMES, LOGS = "records", "outcomes.json", "logs"
ATTEMPTS = 3
"""How often a cell is started whose worker or machine was lost."""

Tell = Callable[[SweepCell, CellResult, bool], object]
"""Called with a cell, its result, and whether it ended in this run."""


@dataclass(frozen=True)
class CellFolder:
    """The folder of a sweep or a bisection.

    Attributes:
        path: it. plan: what decides whether a record in it counts.
    """

    path: Path
    plan: SweepPlan

    @property
    def digest(self) -> str:
        """8 hexadecimal digits of the path, in the names of jobs and temporary folders."""
        return hashlib.sha256(os.path.realpath(self.path).encode()).hexdigest()[:8]

    def request(self, cell: SweepCell) -> CellRequest:
        """The request to judge a cell."""
        path = str(Path.cwd()) if ":" in cell.framework else ""
        return CellRequest(cell, replace(self.plan, groups=()), f"conformance-{self.digest}-", path)

    def record(self, cell: SweepCell) -> Path:
        """The file of a cell's record."""
        return inside(self.path / RECORDS, f"{cell.name}.json.gz")

    def is_done(self, cell: SweepCell) -> bool:
        """Whether a cell has a record of the plan's selection and seed."""
        return finished(self.record(cell), self.plan) is not None

    def store(self, cell: SweepCell, result: CellResult) -> None:
        """Write the record of a result, or the end of its output."""
        for folder, name, content in (
            (RECORDS, f"{cell.name}.json.gz", result.record),
            (LOGS, f"{cell.name}.txt", result.log.encode()),
        ):
            if content:
                (self.path / folder).mkdir(parents=True, exist_ok=True)
                replace_file(inside(self.path / folder, name), content)

    def clean(self) -> None:
        """Remove temporary folders that a killed run left on this machine."""
        for folder in Path(tempfile.gettempdir()).glob(f"conformance-{self.digest}-*"):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Sweep:
    """One sweep.

    Attributes:
        cells: all cells of the plan.
        chosen: names of the cells to judge.
        fresh: whether cells that have a record are judged again.
        tell: called for each chosen cell.
    """

    folder: CellFolder
    cells: Sequence[SweepCell]
    chosen: Collection[str]
    tell: Tell
    fresh: bool = False
    results: dict[str, CellResult] = field(default_factory=dict)

    def run(self, engine: Callable[[], CellEngine]) -> Mapping[str, CellResult]:
        """Judge the chosen cells that have no record; the results of all that are known, by name.

        Args:
            engine: starts the engine; called if a cell is due.

        Raises:
            NoEngine: the engine cannot be started, or takes a cell not even once.
            RecordError: the folder cannot be written.
        """
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.folder.path, error) from None
        self.folder.clean()
        self.results = self._earlier()
        due = []
        for cell in self.cells:
            if cell.name not in self.chosen:
                continue
            if self.folder.is_done(cell) and not self.fresh:
                self._end(cell, CellResult("judged"), now=False)
            elif cell.outcome:
                self._end(cell, CellResult(cell.outcome, cell.reason))
            else:
                due.append(cell)
        if due:
            with ending_signals(once=True):
                started = engine()
                try:
                    self._judge(started, due)
                finally:
                    started.close()
                    self.folder.clean()
        self._write_outcomes()
        return self.results

    def _judge(self, engine: CellEngine, due: Sequence[SweepCell]) -> None:
        attempts = {cell.name: 1 for cell in due}
        for cell in due:
            engine.submit(self.folder.request(cell))
        while attempts:
            request, result = engine.next()
            name = request.cell.name
            if name not in attempts:
                continue
            if isinstance(result, str) and attempts[name] < ATTEMPTS:
                with suppress(NoEngine):
                    engine.submit(request)
                    attempts[name] += 1
                    continue
            if isinstance(result, str):
                result = CellResult("crash", one_line(f"lost {attempts[name]} times ({result})"))
            del attempts[name]
            self._end(request.cell, result)

    def _end(self, cell: SweepCell, result: CellResult, *, now: bool = True) -> None:
        self.folder.store(cell, result)
        self.results[cell.name] = replace(result, record=b"", log="")
        self.tell(cell, result, now)
        if now:
            self._write_outcomes()

    def _earlier(self) -> dict[str, CellResult]:
        """Results of cells in earlier runs."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            cells = json.loads((self.folder.path / OUTCOMES).read_bytes())["cells"]
            return {str(cell["name"]): CellResult(str(cell["outcome"]), str(cell["reason"])) for cell in cells}
        return {}

    def _write_outcomes(self) -> None:
        content = []
        for cell in self.cells:
            if (result := self.results.get(cell.name)) is not None:
                record = self.folder.record(cell).name if result.outcome == "judged" else ""
                ending = {"outcome": result.outcome, "reason": result.reason, "record": record}
                content.append({"name": cell.name, **cell.document(), **ending})
        text = json.dumps({"version": 1, "cells": content}, indent=1, ensure_ascii=False)
        replace_file(self.folder.path / OUTCOMES, text.encode() + b"\n")
