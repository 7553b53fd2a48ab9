"""The findings of the page, causes of known failures: by class, the worst consequence first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results.record.reading import Record
from results.report.text import NAME, VALUE, clean, href, linked
from results.show.findings import HEADINGS, UNCLASSED, ListedFinding, findings


def groups(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """The findings of all records by the heading of their class; one row for all runs of a framework."""
    by_text: dict[tuple[str, str, str, str], list[tuple[int, ListedFinding]]] = {}
    for place, record in enumerate(records):
        for each in findings(record):
            key = (record.series.framework, each.id, each.reason, each.link)
            by_text.setdefault(key, []).append((place, each))
    rows = [(group[0][1], _row(framework, group)) for (framework, *_), group in by_text.items()]
    rows.sort(key=lambda pair: (pair[0].order[:2], pair[1]["framework"]))
    by_class: dict[str, list[dict[str, Any]]] = {}
    for first, row in rows:
        by_class.setdefault(HEADINGS[first.text.kind] if first.text else UNCLASSED, []).append(row)
    return by_class


def _row(framework: str, group: Sequence[tuple[int, ListedFinding]]) -> dict[str, Any]:
    """A finding of a framework; `runs` are the index of each run with it, and the number of its failing tests."""
    first = group[0][1]
    clauses = dict.fromkeys(clause for _, each in group for clause in each.cases)
    return {
        "framework": clean(framework, NAME),
        "consequence": first.text.consequence.value.replace("-", " ") if first.text else "",
        "reason": linked(first.reason, VALUE),
        "link": href(first.link),
        "shows": clean(first.text.link_shows, VALUE) if first.text else "",
        "clauses": [clean(clause) for clause in clauses],
        "runs": [(place, sum(max(1, len(cases)) for cases in each.cases.values())) for place, each in group],
    }
