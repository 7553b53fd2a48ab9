"""The page: one self-contained HTML file that makes no request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial

import altair
import vl_convert
from markupsafe import Markup

from results.compare.pairing import NONE, Comparisons
from results.record.outcomes import Outcome
from results.record.reading import Record
from results.report import about, changed, details, findings, matrix, porting, series, summary
from results.report.assets import asset, environment, policy
from results.report.runs import DASHES, SHAPES, by_framework, frameworks, runs
from results.report.text import clean, embedded, packed
from results.show.clauses import FAILURE_OUTCOMES, GRAVITY, total, unconfirmed
from results.show.portability import Portability, words

MEANINGS = {
    Outcome.PASS: "the clause holds",
    Outcome.KNOWN: "fails exactly as an expectation describes",
    Outcome.UNSUPPORTED: "the adapter refuses it, and the framework's own call does not work either",
    Outcome.NOT_OFFERED: "the adapter refuses it and has no framework call to try: nothing is known of the framework",
    Outcome.ABSTAIN: "two identical runs differ, so there is no verdict",
    Outcome.FAIL: "fails, and no expectation names the failure",
    Outcome.MISDECLARED: "the adapter declares one thing, the test observes another",
    Outcome.FIXED: "expected to fail, but passes",
    Outcome.UNSTABLE: "got worse, but not again when repeated in a new process",
    Outcome.ERROR: "the test raised an unexpected exception",
    Outcome.TIMEOUT: "the test did not end in time",
    Outcome.CRASH: "the Python process died",
}

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
            meanings=MEANINGS,
            symbols=matrix.SYMBOLS,
            dashes=[" ".join(map(str, dash)) for dash in DASHES],
            shapes=list(SHAPES.values()),
            found=findings.groups(records),
            alone=matrix.alone(families),
            porting=porting.groups(records),
            drawn=drawn,
            facts=about.facts(records),
            folds=about.folds(records),
            notes=[about.notes(record) for record in records],
            comparisons=[changed.compared(pair) for pair in comparisons.pairs],
            unmatched=[clean(line) for line in comparisons.unmatched],
            anchors={row.name: row.anchor for family in families for row in family.rows},
            cells_json=map(Markup, packed(details.payload(families, columns, records, _outcomes()))),
            drawn_json=Markup(embedded(drawn)),
            style=Markup(style),
            scripts={name: Markup(script) for name, script in scripts.items()},
            policy=policy(style, list(scripts.values())),
        )
    )


def _outcomes() -> list[list[str | bool]]:
    """Word, symbol, and whether it is a failure, the gravest first."""
    return [[outcome.value, matrix.SYMBOLS[outcome], outcome in FAILURE_OUTCOMES] for outcome in GRAVITY]


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
