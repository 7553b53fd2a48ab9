"""The report's page: one self-contained HTML file that makes no request. All texts of records are cleaned in it."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from results.compare.changes import Change, ChangeKind
from results.compare.comparison import NONE, Comparison, Comparisons
from results.compare.numbers import Movement
from results.compare.verdicts import NOT_JUDGED
from results.record.files import replace_by
from results.record.model import ClauseText, FindingText, Outcome
from results.record.reading import CheckResult, Record, RunSetup, TestVerdict
from results.report import matrix as values
from results.report.matrix import CHOICES, ClauseRow, Matrix, by_framework, matrix, sentences
from results.report.text import (
    MESSAGE,
    NAME,
    VALUE,
    clean,
    compress_texts,
    embed_json,
    format_value,
    href,
    link_addresses,
    number,
)
from results.show.clauses import (
    GRAVITY,
    HEADINGS,
    UNCLASSED,
    ListedFinding,
    describe_unconfirmed,
    findings,
    is_inferred,
    total,
)
from results.show.clauses import number as counted
from results.show.differences import UNSET, group_changes, movements, not_judged, short
from results.show.portability import Portability

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

_NOTES, _FACTS = 50, 1000
"""Largest number of notes of a run, and of names and values in a group of its environment."""

_CHECKS, _LEAKS, _PAIRS, _REPEATS, _RUNS, _REPRO = 200, 20, 40, 20, 50, 2000
"""Largest number of a verdict's checks, leaks, pairs of a derivation, repetitions, runs and characters of `repro`."""


def write(records: Sequence[Record], path: Path, comparisons: Comparisons = NONE) -> None:
    """Write the report atomically.

    Args:
        records: the runs.
        path: the HTML file.
        comparisons: the changes since earlier runs.

    Raises:
        RecordError: the file cannot be written.
    """
    replace_by(path, (piece.encode("utf-8") for piece in pieces(records, comparisons)))


def render(records: Sequence[Record], comparisons: Comparisons = NONE) -> str:
    """Return the page of these records and comparisons."""
    return "".join(pieces(records, comparisons))


def pieces(records: Sequence[Record], comparisons: Comparisons = NONE) -> Iterator[str]:
    """Yield the page in pieces, because a page of hundreds of records is large."""
    records = by_framework(records)
    page = matrix(records)
    used = {verdict.outcome for record in records for verdict in record.verdicts}
    style, script = _asset("style.css"), _script()
    curves = values.curves(page, records)
    yield from (
        _environment()
        .get_template("page.html")
        .generate(
            matrix=page,
            summary=sentences(page, comparisons),
            outcomes=[outcome for outcome in GRAVITY[::-1] if outcome in used],
            legend=LEGEND,
            kinds=Portability,
            outcome_choices=CHOICES,
            levels=sorted({row.text.level for row in page.rows}),
            unconfirmed=any(map(describe_unconfirmed, records)),
            comparisons=comparisons,
            findings=_findings(records),
            observations=values.observations(page, records),
            costs=values.costs(page, records),
            curves=curves,
            environments=list(map(_describe_environment, records)),
            curves_json=Markup(embed_json(curves)),
            tests_json=map(Markup, compress_texts(Details().pieces(page, records))),
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
        )
    )


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text("utf-8")


def _policy(style: str, script: str) -> Markup:
    """Return a content security policy: no requests, and only this script and this style."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode() for text in (script, style))
    allowed = "script-src 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)
    return Markup(f"default-src 'none'; {allowed}; img-src data:; base-uri 'none'; form-action 'none'")


@cache
def _script() -> str:
    """Return the script of the page: its parts in order, in one scope."""
    parts = map(_asset, ("matrix.js", "cells.js", "charts.js"))
    return "\n".join(['(() => {\n  "use strict";', *parts, "})();"])


@cache
def _environment() -> Environment:
    """Return the environment of the templates, which cleans and escapes every text."""
    result = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= {"clean": _clean, "href": href, "linked": _link_text, "number": number}
    result.filters |= {
        "short": short,
        "grouped": group_changes,
        "movements": movements,
        "compared": _describe_comparison,
    }
    result.globals |= {"UNSET": UNSET}
    return result


def _finalize(value: object) -> object:
    """Clean a text and cut it to the length of a value; markup comes from the templates and stays unchanged."""
    return clean(value, VALUE) if isinstance(value, str) and not isinstance(value, Markup) else value


def _clean(text: str, limit: int = VALUE) -> Markup:
    """Clean a text, cut it to `limit` characters, and return it as escaped markup."""
    return Markup.escape(clean(text, limit))


def _link_text(text: str) -> Markup:
    """Return a text with its web addresses as links."""
    link = Markup('<a href="{}" rel="noopener noreferrer">{}</a>')
    return Markup("").join(
        link.format(part.href, part.text) if part.href else part.text for part in link_addresses(text)
    )


def _describe_comparison(pair: Comparison) -> dict[str, Any]:
    """Return a comparison's verdict in a sentence, its changes, the worst first, and counted changes by kind."""
    changes = sorted(pair.changes, key=lambda change: not change.kind.worse)
    by_kind: dict[ChangeKind, list[Change]] = {}
    for change in changes:
        by_kind.setdefault(change.kind, []).append(change)
    timed = len(by_kind.pop(ChangeKind.NOT_JUDGED, ()))
    worse = sum(change.kind.worse for change in changes)
    return {
        "verdict": f"{_verdict(pair, worse)} {pair.compared} of {pair.of} tests were compared.",
        "worse": worse,
        "listed": [change for change in changes if change.kind.listed],
        "counted": {kind: by_kind[kind] for kind in ChangeKind if kind in by_kind and not kind.listed},
        "timings": f"{not_judged(timed)}: {NOT_JUDGED}." if timed else "",
        "numbers": [one for one in pair.numbers if one.movement is not Movement.IDENTICAL],
    }


def _verdict(pair: Comparison, worse: int) -> str:
    if pair.status == 2:
        return "Cannot be judged."
    if pair.status == 1:
        return f"Regressions found: {worse} of {counted(len(pair.changes), 'change')}."
    if pair.identical:
        return "No regressions: the two runs are identical."
    drifted = pair.drifted
    return f"No regressions; {counted(drifted, 'test')} drifted." if drifted else "No regressions."


def _findings(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """The findings of all records by the heading of their class, the worst first; one row for a framework's runs."""
    by_text: dict[tuple[str, str, str, str], list[ListedFinding]] = {}
    for record in records:
        for one in findings(record):
            by_text.setdefault((record.series.framework, one.id, one.reason, one.link), []).append(one)
    by_class: dict[str, list[dict[str, Any]]] = {}
    for (framework, *_), same in sorted(by_text.items(), key=lambda item: (item[1][0].order[:2], item[0][0])):
        text = same[0].text
        row = {
            "framework": framework,
            "consequence": text.consequence.replace("-", " ") if text else "–",
            "reason": same[0].reason,
            "link": same[0].link,
            "shows": text.link_shows if text else "",
            "clauses": list(dict.fromkeys(clause for one in same for clause in one.cases)),
            "tests": sum(max(1, len(cases)) for one in same for cases in one.cases.values()),
            "runs": len(same),
        }
        by_class.setdefault(HEADINGS[text.kind] if text else UNCLASSED, []).append(row)
    return by_class


def _describe_environment(record: Record) -> dict[str, Any]:
    """The facts about a run, its environment in groups of names and values, and its notes."""
    counts, untested = total(record), record.suite.clauses_without_tests
    facts = {
        "status": record.status,
        "tests": f"{len(record.verdicts)} of {counts.clauses.total()} clauses",
        "selection": record.selection or "all tests",
        "seed": str(record.seed)[:40],
        "started": record.started,
        "duration": f"{number(round(record.duration_s, 1))} s",
        "suite": record.suite.version,
        "device": " ".join(dict.fromkeys(filter(None, (record.series.device, record.series.device_kind)))),
        "clauses without a test": f"{len(untested)}: {', '.join(untested[:20])}" if untested else "0",
        **record.variant.environment,
    }
    groups: dict[str, Mapping[str, str]] = {
        "": facts,
        "Environment variables": record.variant.variables,
        "Packages": record.variant.packages,
        "Instruction sets": dict.fromkeys(record.variant.instruction_sets, "yes"),
    }
    return {
        "groups": {title: list(group.items())[:_FACTS] for title, group in groups.items()},
        "notes": [*describe_unconfirmed(record), *record.notes[:_NOTES]],
    }


class _Numbers(dict[str, int]):
    """Numbers of distinct JSON texts, by the text."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def _drop_empty(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in ("", [], 0)}


def _parts(text: str, limit: int = VALUE) -> list[dict[str, str]]:
    return [_drop_empty(text=part.text, href=part.href) for part in link_addresses(text, limit)]


class Details:
    """Numbered verdicts, checks and derivations, from which the page's script shows a cell.

    The document has `runs`, their names; `rows`, one for each clause, with its texts and, by the index of
    the run, its tests; `verdicts`, `checks` and `derivations`, to which these refer by number. Empty fields are left
    out.
    """

    def __init__(self) -> None:
        self._verdicts, self._checks, self._derivations = _Numbers(), _Numbers(), _Numbers()
        self._known: dict[int, int] = {}

    def pieces(self, matrix: Matrix, records: Sequence[Record]) -> Iterator[str]:
        """The document in pieces of its JSON text."""
        runs = [{"label": run.label, "slug": run.slug, "framework": run.framework} for run in matrix.runs]
        yield f'{{"runs":{_json(runs)},"rows":['
        for row in matrix.rows:
            yield f"{',' if row.number else ''}{_json(self._row(row, records))}"
        numbered = (("verdicts", self._verdicts), ("checks", self._checks), ("derivations", self._derivations))
        yield "]"
        for name, texts in numbered:
            yield f',"{name}":[{",".join(texts)}]'
        yield "}"

    def _row(self, row: ClauseRow, records: Sequence[Record]) -> dict[str, Any]:
        tests, wordings = {}, {}
        for run, (record, verdicts) in enumerate(zip(records, row.verdicts, strict=True)):
            if verdicts:
                tests[run] = [
                    {"verdict": self._verdict(v, record.findings), "seconds": number(round(v.duration_s, 3))}
                    for v in verdicts
                ]
                own = record.clauses[verdicts[0].clause].requirement
                if own != row.text.requirement:
                    wordings[run] = clean(own, VALUE)
        return {"name": row.name, "tests": tests, "wordings": wordings, **_about(row.text)}

    def _verdict(self, verdict: TestVerdict, texts: Mapping[str, FindingText]) -> int:
        repeated = (verdict.reason, f"{verdict.signature}: {verdict.reason}")
        link = href(verdict.link)
        fields = _drop_empty(
            outcome=verdict.outcome.value,
            test=clean(verdict.case, 2 * NAME),
            signature=clean(verdict.signature),
            reason=_parts(verdict.reason, MESSAGE),
            link=link,
            address="" if link else clean(verdict.link),
            message="" if verdict.message in repeated else clean(verdict.message, MESSAGE, lines=True),
            repro=clean(verdict.repro, _REPRO),
            seed="" if verdict.seed is None else clean(str(verdict.seed), 40),
            leaks=[clean(leak) for leak in verdict.leaks[:_LEAKS]],
            checks=[self._check(check) for check in verdict.checks[:_CHECKS]],
            left=max(len(verdict.checks) - _CHECKS, 0),
            finding=_describe_finding(verdict.finding, texts),
            elsewhere=clean(verdict.inferred_from) if is_inferred(verdict) else "",
            repeats=[clean(repeat) for repeat in verdict.repeats[:_REPEATS]],
            runs=[_run(run) for run in verdict.runs[:_RUNS]],
        )
        return self._verdicts[_json(fields)]

    def _check(self, check: CheckResult) -> int:
        """Return the number of a check, known by its address: records share equal checks and outlive this object."""
        if id(check) not in self._known:
            pairs = list(check.derivation.items())[:_PAIRS]
            derivation = "; ".join(f"{key[:NAME]}: {format_value(value, NAME)}" for key, value in pairs)
            fields = {
                "passed": check.passed,
                "what": clean(check.what, 2 * NAME),
                "got": format_value(check.measured),
                "want": "" if check.expected is None else format_value(check.expected),
                "bound": "" if check.bound is None else format_value(check.bound),
                "derivation": self._derivations[_json(clean(derivation, MESSAGE))],
            }
            self._known[id(check)] = self._checks[_json(fields)]
        return self._known[id(check)]


def _about(text: ClauseText) -> dict[str, Any]:
    return {
        "level": clean(text.level, 40),
        "requirement": clean(text.requirement, VALUE),
        "source": _parts(text.source),
        "history": [_parts(entry) for entry in text.history[:20]],
    }


def _describe_finding(name: str, texts: Mapping[str, FindingText]) -> str:
    """Return a finding with its class and consequence, or "" without a finding."""
    text = texts.get(name)
    return clean(f"{name}: {text.kind}, {text.consequence.replace('-', ' ')}", VALUE) if text else ""


def _run(run: RunSetup) -> str:
    """Return fixture and recipe of a run in one line."""
    return f"{clean(run.fixture)} {format_value(run.recipe, VALUE)}" if run.recipe else clean(run.fixture)
