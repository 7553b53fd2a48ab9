"""Records in less memory, for commands that read hundreds of them."""

from __future__ import annotations

from dataclasses import replace

from results.record.model import Record, TestVerdict


class Outlines:
    """Makes outlines of records: no checks, runs, costs, curves and fingerprints, and one object for equal texts."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __call__(self, record: Record) -> Record:
        """The outline of a record."""
        verdicts = tuple(self._verdict(verdict) for verdict in record.verdicts)
        return replace(record, verdicts=verdicts, measurements=(), traces=(), tensors=())

    def _verdict(self, verdict: TestVerdict) -> TestVerdict:
        return replace(
            verdict,
            test=self._text(verdict.test),
            case=self._text(verdict.case),
            clause=self._text(verdict.clause),
            message=self._text(verdict.message),
            reason=self._text(verdict.reason),
            link=self._text(verdict.link),
            code_hash=self._text(verdict.code_hash),
            repro=self._text(verdict.repro),
            checks=(),
            runs=(),
        )

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)


def heading(record: Record) -> Record:
    """The record without anything that its tests left."""
    return replace(
        record, clauses={}, findings={}, verdicts=(), observations=(), measurements=(), traces=(), tensors=()
    )
