"""What lies behind the cells, as compact JSON: every distinct text once, everything else numbers that point to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results.record.reading import CheckResult, FindingText, Record, RunSetup, TestVerdict
from results.report.about import identity
from results.report.matrix import Family
from results.report.runs import RunColumn
from results.report.text import MESSAGE, NAME, VALUE, Piece, clean, described, href, linked, number
from results.show.clauses import GRAVITY, inferred

_CHECKS, _LEAKS, _PAIRS, _REPEATS, _RUNS, _PACKAGES = 200, 20, 40, 20, 50, 1000
_REPRO = 2000


class Texts:
    """Distinct texts by number."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """The number of a text."""
        return self._places.setdefault(text, len(self._places))

    @property
    def listed(self) -> list[str]:
        """The texts in the order of their numbers."""
        return list(self._places)


def payload(matrix: Sequence[Family], runs: Sequence[RunColumn], records: Sequence[Record]) -> dict[str, Any]:
    """The document that the page's script shows cells from.

    `cells[i]` is [clause, run, verdicts]; a verdict is [outcome, test, signature, reason, link, message, repro, seed,
    seconds, leaks, checks, checks left out, finding, judged version, repeats, runs], a check [held, what, measured,
    expected, bound, derivation], a finding [id, class, consequence, what its link shows];
    `about[run]` is what an issue says of a run, [name, value] each, and `packages[run]` likewise.
    """
    texts, clauses, cells = Texts(), [], []
    known: dict[tuple[str, ...], int] = {}
    for row in (row for family in matrix for row in family.rows):
        about = [row.name, row.level, row.requirement, _pieces(row.source), [_pieces(entry) for entry in row.history]]
        clauses.append(about)
        for cell in row.cells:
            if cell.verdicts:
                findings = records[cell.run].findings
                listed = [
                    [*_verdict(verdict, texts), _finding(verdict, findings, known), *_doubts(verdict, texts)]
                    for verdict in cell.verdicts
                ]
                cells.append([row.number, cell.run, listed])
    return {
        "runs": [run.label for run in runs],
        "about": [identity(record) for record in records],
        "packages": [_packages(record) for record in records],
        "clauses": clauses,
        "cells": cells,
        "findings": list(known),
        "texts": texts.listed,
    }


def _finding(verdict: TestVerdict, findings: Mapping[str, FindingText], known: dict[tuple[str, ...], int]) -> int:
    """The number of the finding that a verdict rests on, -1 without one."""
    text = findings.get(verdict.finding)
    if text is None:
        return -1
    shown = (clean(verdict.finding), text.kind.value, text.consequence.value, clean(text.link_shows, VALUE))
    return known.setdefault(shown, len(known))


def _doubts(verdict: TestVerdict, texts: Texts) -> list[Any]:
    """The judged version that a known failure was taken from, outcomes of repetitions, and what runs it rests on."""
    repeats = [texts.place(clean(repeat)) for repeat in verdict.repeats[:_REPEATS]]
    runs = [texts.place(_run(run)) for run in verdict.runs[:_RUNS]]
    return [texts.place(clean(verdict.inferred_from) if inferred(verdict) else ""), repeats, runs]


def _run(run: RunSetup) -> str:
    """Fixture and recipe of a run in one line."""
    return f"{clean(run.fixture)} {described(run.recipe, VALUE)}" if run.recipe else clean(run.fixture)


def _packages(record: Record) -> list[list[str]]:
    listed = sorted(record.variant.packages.items())[:_PACKAGES]
    return [[clean(name), clean(version)] for name, version in listed]


def _pieces(pieces: Sequence[Piece]) -> list[list[str]]:
    return [[piece.text, piece.href] if piece.href else [piece.text] for piece in pieces]


def _verdict(verdict: TestVerdict, texts: Texts) -> list[Any]:
    said = (verdict.reason, f"{verdict.signature}: {verdict.reason}")
    message = "" if verdict.message in said else verdict.message
    return [
        GRAVITY.index(verdict.outcome),
        texts.place(clean(verdict.test.rpartition("::")[2] or verdict.test, 2 * NAME)),
        texts.place(clean(verdict.signature)),
        _pieces(linked(verdict.reason, MESSAGE)),
        href(verdict.link) or (["not a web address: " + clean(verdict.link)] if verdict.link else ""),
        texts.place(clean(message, MESSAGE, lines=True)),
        texts.place(clean(verdict.repro, _REPRO)),
        verdict.seed if verdict.seed is None else clean(str(verdict.seed), 40),
        number(round(verdict.duration_s, 3)),
        [texts.place(clean(leak)) for leak in verdict.leaks[:_LEAKS]],
        [_check(check, texts) for check in verdict.checks[:_CHECKS]],
        max(len(verdict.checks) - _CHECKS, 0),
    ]


def _check(check: CheckResult, texts: Texts) -> list[Any]:
    pairs = list(check.derivation.items())[:_PAIRS]
    derivation = "; ".join(f"{key[:NAME]}: {described(value, NAME)}" for key, value in pairs)
    return [
        int(check.passed),
        texts.place(clean(check.what, 2 * NAME)),
        texts.place(described(check.measured)),
        texts.place("" if check.expected is None else described(check.expected)),
        texts.place("" if check.bound is None else described(check.bound)),
        texts.place(clean(derivation, MESSAGE)),
    ]
