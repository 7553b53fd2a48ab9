"""The page: one self-contained HTML file that makes no request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import altair
import vl_convert
from markupsafe import Markup

from results.compare.pairing import NONE, Comparisons
from results.record.outcomes import Outcome
from results.record.reading import Record
from results.report import about, changed, details, matrix, porting, series, summary
from results.report.assets import asset, environment, policy
from results.report.runs import DASHES, SHAPES, by_framework, frameworks, runs
from results.report.text import NAME, VALUE, clean, embedded, href, linked, packed
from results.show.clauses import FAILURE_OUTCOMES, GRAVITY, total, unconfirmed
from results.show.findings import HEADINGS, UNCLASSED, ListedFinding, findings
from results.show.portability import Portability, words

LEGEND = {
    Outcome.PASS: ("✓", "the clause holds"),
    Outcome.KNOWN: ("◆", "fails exactly as an expectation describes"),
    Outcome.UNSUPPORTED: ("–", "the adapter refuses it, and the framework's own call does not work either"),
    Outcome.NOT_OFFERED: (
        "∅",
        "the adapter refuses it and has no framework call to try: nothing is known of the framework",
    ),
    Outcome.ABSTAIN: ("○", "two identical runs differ, so there is no verdict"),
    Outcome.FAIL: ("✗", "fails, and no expectation names the failure"),
    Outcome.MISDECLARED: ("≠", "the adapter declares one thing, the test observes another"),
    Outcome.FIXED: ("↑", "expected to fail, but passes"),
    Outcome.UNSTABLE: ("~", "got worse, but not again when repeated in a new process"),
    Outcome.ERROR: ("!", "the test raised an unexpected exception"),
    Outcome.TIMEOUT: ("∞", "the test did not end in time"),
    Outcome.CRASH: ("†", "the Python process died"),
}
"""Symbol and meaning of each outcome."""

_text = partial(asset, __package__)

_PARTS = ("elements.js", "filters.js", "issue.js", "cells.js", "address.js", "tables.js")


def render(records: Sequence[Record], comparisons: Comparisons = NONE) -> str:
    """The page of these records and comparisons."""
    return "".join(pieces(records, comparisons))


def pieces(records: Sequence[Record], comparisons: Comparisons = NONE) -> Iterator[str]:
    """The page in pieces, because hundreds of records make a large one."""
    records = by_framework(records)
    columns = runs(records)
    groups = frameworks(records)
    totals = list(map(total, records))
    families = matrix.families(records)
    outcomes = [o for o in reversed(GRAVITY) if any(v.outcome is o for r in records for v in r.verdicts)]
    graded = [[outcome.value, LEGEND[outcome][0], outcome in FAILURE_OUTCOMES] for outcome in GRAVITY]
    drawn = series.payload(records, columns)
    scripts = {"theme.js": _text("theme.js"), "page.js": _behaviour(), "charts.js": _charts()}
    style = _text("style.css")
    yield from (
        environment(__package__)
        .get_template("page.html")
        .generate(
            runs=columns,
            frameworks=groups,
            starts={group.runs[0] for group in groups},
            summary=list(summary.sentences(families, groups, sum(each.tests.total() for each in totals), comparisons)),
            totals=totals,
            families=families,
            levels=sorted({row.level for family in families for row in family.rows}),
            outcomes=outcomes,
            choices=matrix.choices(words(records).values()),
            together=[(summary.DISAGREE, "disagree"), (summary.SPLIT, "split")] if len(groups) > 1 else [],
            outcome_choices=list(summary.CHOICES.items()),
            kinds=Portability,
            unconfirmed=any(map(unconfirmed, records)),
            meanings={outcome: meaning for outcome, (_, meaning) in LEGEND.items()},
            symbols={outcome: symbol for outcome, (symbol, _) in LEGEND.items()},
            dashes=[" ".join(map(str, dash)) for dash in DASHES],
            shapes=list(SHAPES.values()),
            found=_findings(records),
            alone=matrix.alone(families),
            porting=porting.groups(records),
            drawn=drawn,
            facts=about.facts(records),
            folds=about.folds(records),
            notes=[about.notes(record) for record in records],
            comparisons=[changed.compared(pair) for pair in comparisons.pairs],
            unmatched=[clean(line) for line in comparisons.unmatched],
            anchors={row.name: row.anchor for family in families for row in family.rows},
            cells_json=map(Markup, packed(details.payload(families, columns, records, graded))),
            drawn_json=Markup(embedded(drawn)),
            style=Markup(style),
            scripts={name: Markup(script) for name, script in scripts.items()},
            policy=policy(style, list(scripts.values())),
        )
    )


def _findings(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """The findings of all records by the heading of their class; one row for all runs of a framework."""
    by_text: dict[tuple[str, str, str, str], list[tuple[int, ListedFinding]]] = {}
    for place, record in enumerate(records):
        for each in findings(record):
            key = (record.series.framework, each.id, each.reason, each.link)
            by_text.setdefault(key, []).append((place, each))
    rows = [(group[0][1], _finding(framework, group)) for (framework, *_), group in by_text.items()]
    rows.sort(key=lambda pair: (pair[0].order[:2], pair[1]["framework"]))
    by_class: dict[str, list[dict[str, Any]]] = {}
    for first, row in rows:
        by_class.setdefault(HEADINGS[first.text.kind] if first.text else UNCLASSED, []).append(row)
    return by_class


def _finding(framework: str, group: Sequence[tuple[int, ListedFinding]]) -> dict[str, Any]:
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


@cache
def _behaviour() -> str:
    """The script of the page: its parts in one scope, in order."""
    return "\n".join(['(() => {\n  "use strict";', *map(_text, _PARTS), "})();"])


@cache
def _charts() -> str:
    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    script: str = vl_convert.javascript_bundle(
        _text("charts.js"), vl_version=version if version in known else known[-1]
    )
    return script.replace("\r", "").replace("</script", r"<\/script").replace("<!--", r"\x3c!--")
