"""The findings of the page, causes of known failures: by class, the worst consequence first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.record.reading import Record
from results.report.text import NAME, VALUE, TextPart, clean, href, linked
from results.show.findings import HEADINGS, UNCLASSED, ListedFinding, findings


@dataclass(frozen=True)
class FindingRow:
    """A finding of a framework.

    Attributes:
        reason: the defect, with links.
        link: its source, or ""; `shows` describes the source.
        clauses: the failing clauses.
        runs: index of each run with the finding, and the number of its failing tests.
    """

    framework: str
    consequence: str
    reason: tuple[TextPart, ...]
    link: str
    shows: str
    clauses: tuple[str, ...]
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class FindingClass:
    """The findings of a class."""

    title: str
    rows: tuple[FindingRow, ...]


def groups(records: Sequence[Record]) -> tuple[FindingClass, ...]:
    """The findings of all records by class; one row for all runs of a framework."""
    by_text: dict[tuple[str, str, str, str], list[tuple[int, ListedFinding]]] = {}
    for place, record in enumerate(records):
        for each in findings(record):
            key = (record.series.framework, each.id, each.reason, each.link)
            by_text.setdefault(key, []).append((place, each))
    by_class: dict[str, list[tuple[tuple[int, int, str], FindingRow]]] = {}
    for (framework, *_), result in by_text.items():
        first = result[0][1]
        title = HEADINGS[first.text.kind] if first.text else UNCLASSED
        by_class.setdefault(title, []).append((first.order, _row(framework, result)))
    ordered = (title for title in (*HEADINGS.values(), UNCLASSED) if title in by_class)
    return tuple(
        FindingClass(
            title, tuple(row for _, row in sorted(by_class[title], key=lambda pair: (pair[0][1], pair[1].framework)))
        )
        for title in ordered
    )


def _row(framework: str, group: Sequence[tuple[int, ListedFinding]]) -> FindingRow:
    first = group[0][1]
    clauses = dict.fromkeys(clause for _, each in group for clause in each.cases)
    counts = ((place, sum(max(1, len(cases)) for cases in each.cases.values())) for place, each in group)
    return FindingRow(
        framework=clean(framework, NAME),
        consequence=first.text.consequence.value.replace("-", " ") if first.text else "",
        reason=linked(first.reason, VALUE),
        link=href(first.link),
        shows=clean(first.text.link_shows, VALUE) if first.text else "",
        clauses=tuple(clean(clause) for clause in clauses),
        runs=tuple(counts),
    )
