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
        clauses = {self._text(name): self._clauses.setdefault(text, text) for name, text in record.clauses.items()}
        verdicts = tuple(self._verdict(verdict) for verdict in record.verdicts)
        outline = replace(record, clauses=clauses, verdicts=verdicts, tensors=())
        return outline if self._details else replace(outline, measurements=(), traces=())

    def _verdict(self, verdict: TestVerdict) -> TestVerdict:
        share, given = self._texts.setdefault, vars(verdict)
        shared: dict[str, Any] = {name: share(given[name], given[name]) for name in _TEXTS}
        shared["checks"] = tuple(map(self._check, verdict.checks)) if self._details else ()
        shared["runs"] = tuple(map(self._run, verdict.runs)) if self._details else ()
        return TestVerdict(**(given | shared))

    def _check(self, check: CheckResult) -> CheckResult:
        return self._checks.setdefault(repr(check), check)

    def _run(self, run: RunSetup) -> RunSetup:
        return self._runs.setdefault(repr(run), run)

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)


def heading(record: Record) -> Record:
    """The record without the results of its tests."""
    return replace(
        record, clauses={}, findings={}, verdicts=(), observations=(), measurements=(), traces=(), tensors=()
    )
