"""Reduced records, for commands that read hundreds of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from results.record.model import CheckResult, Record, RunSetup, TestVerdict
from results.record.texts import ClauseText

_TEXTS = ("test", "clause", "message", "reason", "link", "repro")


class Outlines:
    """Makes outlines of records: no fingerprints, and one object for equal texts, checks and runs.

    Args:
        details: whether checks, runs, costs and curves stay, as a report shows them.
    """

    def __init__(self, details: bool = False) -> None:
        self._details = details
        self._texts: dict[str, str] = {}
        self._clauses: dict[ClauseText, ClauseText] = {}
        self._checks: dict[str, CheckResult] = {}
        self._runs: dict[str, RunSetup] = {}

    def __call__(self, record: Record) -> Record:
        """The outline of a record."""
        clauses = {
            self._texts.setdefault(name, name): self._clauses.setdefault(text, text)
            for name, text in record.clauses.items()
        }
        verdicts = tuple(self._verdict(verdict) for verdict in record.verdicts)
        outline = replace(record, clauses=clauses, verdicts=verdicts, tensors=())
        return outline if self._details else replace(outline, measurements=(), traces=())

    def _verdict(self, verdict: TestVerdict) -> TestVerdict:
        share, given = self._texts.setdefault, vars(verdict)
        shared: dict[str, Any] = {name: share(given[name], given[name]) for name in _TEXTS}
        checks, runs = (verdict.checks, verdict.runs) if self._details else ((), ())
        shared["checks"] = tuple(self._checks.setdefault(repr(check), check) for check in checks)
        shared["runs"] = tuple(self._runs.setdefault(repr(run), run) for run in runs)
        return TestVerdict(**(given | shared))


def heading(record: Record) -> Record:
    """The record without the results of its tests."""
    return replace(record.with_parts(lambda _: ()), clauses={}, findings={}, verdicts=())
