"""Drill-down data of the cells as compact JSON; equal texts, checks and verdicts are stored once and numbered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from results.record.reading import CheckResult, Record, RunSetup, TestVerdict
from results.record.texts import FindingText
from results.report.about import identity
from results.report.matrix import ClauseRow, Family
from results.report.runs import RunColumn
from results.report.text import MESSAGE, NAME, VALUE, TextPart, clean, described, embedded, href, linked, number
from results.show.clauses import GRAVITY, inferred

_CHECKS, _LEAKS, _PAIRS, _REPEATS, _RUNS, _PACKAGES = 200, 20, 40, 20, 50, 1000
_REPRO = 2000


def _numbering() -> defaultdict[Any, int]:
    """Numbers of distinct things, by the thing."""
    return defaultdict(count().__next__)


class Details:
    """Numbered texts, checks, verdicts and findings of the cells."""

    def __init__(self) -> None:
        self._texts = _numbering()
        self._checks = _numbering()
        self._verdicts = _numbering()
        self._findings = _numbering()
        self._known: dict[tuple[str, int, bool], int] = {}
        self._shared: dict[int, int] = {}

    @property
    def listed(self) -> dict[str, Any]:
        """All of them."""
        return {
            "verdicts": list(self._verdicts),
            "checks": list(self._checks),
            "findings": list(self._findings),
            "texts": list(self._texts),
        }

    def verdict(self, verdict: TestVerdict, findings: Mapping[str, FindingText]) -> int:
        """The number of a verdict of a record with these findings."""
        said = (verdict.reason, f"{verdict.signature}: {verdict.reason}")
        message = "" if verdict.message in said else verdict.message
        return self._verdicts[
            (
                GRAVITY.index(verdict.outcome),
                self._text(verdict.case, 2 * NAME),
                self._text(verdict.signature),
                _pieces(linked(verdict.reason, MESSAGE)),
                href(verdict.link) or (("not a web address: " + clean(verdict.link),) if verdict.link else ""),
                self._text(message, MESSAGE, lines=True),
                self._text(verdict.repro, _REPRO),
                verdict.seed if verdict.seed is None else clean(str(verdict.seed), 40),
                tuple(map(self._text, verdict.leaks[:_LEAKS])),
                tuple(map(self._check, verdict.checks[:_CHECKS])),
                max(len(verdict.checks) - _CHECKS, 0),
                self._finding(verdict, findings),
                self._text(verdict.inferred_from if inferred(verdict) else ""),
                tuple(map(self._text, verdict.repeats[:_REPEATS])),
                tuple(self._texts[_run(run)] for run in verdict.runs[:_RUNS]),
            )
        ]

    def _text(self, text: str, limit: int = NAME, lines: bool = False) -> int:
        """The number of a text as it is shown (see `clean`)."""
        key = (text, limit, lines)
        if key not in self._known:
            self._known[key] = self._texts[clean(text, limit, lines)]
        return self._known[key]

    def _check(self, check: CheckResult) -> int:
        """The number of a check. Records share equal ones, and live longer than this: an address is of one check."""
        if id(check) not in self._shared:
            pairs = list(check.derivation.items())[:_PAIRS]
            derivation = "; ".join(f"{key[:NAME]}: {described(value, NAME)}" for key, value in pairs)
            self._shared[id(check)] = self._checks[
                (
                    int(check.passed),
                    self._text(check.what, 2 * NAME),
                    self._texts[described(check.measured)],
                    self._texts["" if check.expected is None else described(check.expected)],
                    self._texts["" if check.bound is None else described(check.bound)],
                    self._text(derivation, MESSAGE),
                )
            ]
        return self._shared[id(check)]

    def _finding(self, verdict: TestVerdict, findings: Mapping[str, FindingText]) -> int:
        """The number of the finding that a verdict rests on, -1 without one."""
        text = findings.get(verdict.finding)
        if text is None:
            return -1
        entry = (clean(verdict.finding), text.kind.value, text.consequence.value, clean(text.link_shows, VALUE))
        return self._findings[entry]


def payload(
    matrix: Sequence[Family], runs: Sequence[RunColumn], records: Sequence[Record], outcomes: Sequence[Any]
) -> Iterator[str]:
    """The document from which the page's script shows cells, in pieces of its JSON text.

    `cells[i]` is [clause, run, verdicts], each of these [number, seconds]; a verdict is [outcome, test, signature,
    reason, link, message, repro, seed, leaks, checks, checks left out, finding, judged version, repeats, runs], a check
    [passed, what, measured, expected, bound, derivation], a finding [id, class, consequence, what its link shows];
    `wordings[run]` has the requirements that the run's suite worded otherwise, by clause;
    `about[run]` lists the facts of a run for an issue, [name, value] each, and `packages[run]` its packages.

    Args:
        outcomes: word, symbol and whether it is a failure, the gravest first.
    """
    rows = [row for family in matrix for row in family.rows]
    about = {
        "outcomes": outcomes,
        "runs": [run.label for run in runs],
        "about": [identity(record) for record in records],
        "packages": [_packages(record) for record in records],
        "clauses": [
            [row.name, row.level, row.requirement, _pieces(row.source), [_pieces(entry) for entry in row.history]]
            for row in rows
        ],
        "wordings": [_wordings(record, rows) for record in records],
    }
    yield f'{embedded(about)[:-1]},"cells":['
    details, between = Details(), ""
    for row in rows:
        for cell in row.cells:
            if cell.verdicts:
                findings = records[cell.run].findings
                listed = [
                    [details.verdict(verdict, findings), number(round(verdict.duration_s, 3))]
                    for verdict in cell.verdicts
                ]
                yield between + embedded([row.number, cell.run, listed])
                between = ","
    yield f"],{embedded(details.listed)[1:]}"


def _wordings(record: Record, rows: Sequence[ClauseRow]) -> dict[int, str]:
    """Requirements of a record that differ from those of the rows, by the rows' numbers."""
    own = {row.number: clean(record.clauses[row.name].requirement, VALUE) for row in rows if row.name in record.clauses}
    return {row.number: own[row.number] for row in rows if own.get(row.number, row.requirement) != row.requirement}


def _run(run: RunSetup) -> str:
    """Fixture and recipe of a run in one line."""
    return f"{clean(run.fixture)} {described(run.recipe, VALUE)}" if run.recipe else clean(run.fixture)


def _packages(record: Record) -> list[list[str]]:
    listed = sorted(record.variant.packages.items())[:_PACKAGES]
    return [[clean(name), clean(version)] for name, version in listed]


def _pieces(pieces: Sequence[TextPart]) -> tuple[tuple[str, ...], ...]:
    return tuple((piece.text, piece.href) if piece.href else (piece.text,) for piece in pieces)
