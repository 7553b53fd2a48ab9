"""The known failures of a record, as data and as a Markdown list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.marks import code, source, words
from results.outcomes import Outcome
from results.records import Record
from results.table import title

_SHOWN_CASES = 6


@dataclass(frozen=True)
class Finding:
    """A clause that a framework is known not to keep: why, since when it has been told of, and in which cases."""

    clause: str
    cases: tuple[str, ...]
    reason: str
    link: str


def findings(record: Record) -> tuple[Finding, ...]:
    """The record's known failures by clause, reason and link, cases of one failure together."""
    cases: dict[tuple[str, str, str], list[str]] = {}
    for verdict in record.verdicts:
        if verdict.outcome is Outcome.KNOWN:
            cases.setdefault((verdict.clause, verdict.reason, verdict.link), []).append(verdict.case)
    return tuple(
        Finding(clause, tuple(sorted(filter(None, found))), reason, link)
        for (clause, reason, link), found in sorted(cases.items())
    )


def markdown(records: Sequence[Record]) -> str:
    """The known failures of every record, one heading a record."""
    blocks = []
    for record in records:
        lines = [line(finding) for finding in findings(record)] or ["No known failures."]
        blocks.append("\n".join([f"### {words(' · '.join(title(record)))}", "", *lines]))
    return "\n\n".join(blocks) + "\n"


def line(finding: Finding) -> str:
    """One known failure as an item of a Markdown list."""
    shown = ", ".join(code(case) for case in finding.cases[:_SHOWN_CASES])
    more = len(finding.cases) - _SHOWN_CASES
    cases = f" ({shown}{f' and {more} more' if more > 0 else ''})" if shown else ""
    return f"- **{code(finding.clause)}**{cases}: {words(finding.reason) or 'no reason given'}{source(finding.link)}"
