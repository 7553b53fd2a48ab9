"""The known failures of a record, as data and as a Markdown list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from results.files import one_line
from results.outcomes import Outcome
from results.records import Record
from results.table import title

_SHOWN_CASES = 6
_URL = re.compile(r"https?://[^\s<>\[\]\"'`\\]+")


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
        lines = [_line(finding) for finding in findings(record)] or ["No known failures."]
        blocks.append("\n".join([f"### {_text(' · '.join(title(record)))}", "", *lines]))
    return "\n\n".join(blocks) + "\n"


def _line(finding: Finding) -> str:
    shown = ", ".join(_code(case) for case in finding.cases[:_SHOWN_CASES])
    more = len(finding.cases) - _SHOWN_CASES
    cases = f" ({shown}{f' and {more} more' if more > 0 else ''})" if shown else ""
    return f"- **{_code(finding.clause)}**{cases}: {_text(finding.reason) or 'no reason given'}{_link(finding.link)}"


def _link(link: str) -> str:
    if _URL.fullmatch(link):
        return f" ([source]({link.replace('(', '%28').replace(')', '%29')}))"
    return f" ({_text(link)})" if link else ""


def _code(text: str) -> str:
    return f"`{one_line(text, 120).replace('`', chr(39))}`"


def _text(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", one_line(text).replace("&", "&amp;"))
