"""Histories as JSON: compact, so that it can be committed; records are the full data.

Versions are numbered by their place in the line, and words have one letter (`LETTERS`). A run is [first, last, word],
of judged versions alone. docs/history.md describes the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results.history.changes import ChangePoint, ClauseHistory, LineHistory
from results.history.explanations import explained
from results.history.lines import VersionColumn, VersionLine
from results.history.statements import alongside, statement
from results.history.states import CaseWord
from results.record.values import plain, to_line

VERSION = 1

LETTERS: dict[CaseWord, str] = {
    "pass": "p",
    "fail": "f",
    "unsupported": "u",
    "abstain": "a",
    "unstable": "s",
    "not offered": "n",
}

_NAMED = 5
"""Tests of a point that are named; all are counted."""


def compact(histories: Sequence[LineHistory]) -> str:
    """All lines as one document, in a line for each clause so that a difference of two documents is short."""
    lines = ",\n".join(_line(each) for each in histories)
    letters = to_line({letter: word for word, letter in LETTERS.items()})
    return f'{{"version":{VERSION},"words":{letters},"lines":[\n{lines}\n]}}\n'


def _line(one: LineHistory) -> str:
    head = _text(header(one.line))[:-1]
    clauses = ",\n".join(
        f"{_text(name)}:{_text(_clause(one.line, clause))}" for name, clause in sorted(one.clauses.items())
    )
    return f'{head},"clauses":{{\n{clauses}\n}}}}'


def _text(document: object) -> str:
    return to_line(plain(document))


def header(line: VersionLine) -> dict[str, Any]:
    """A line without its clauses."""
    return {
        "framework": line.framework,
        "package": line.package,
        "mode": line.mode,
        "device": line.device,
        "platform": line.platform,
        "seed": line.seed,
        "fixed": dict(line.fixed),
        "versions": [_column(column) for column in line.columns],
    }


def _column(column: VersionColumn) -> dict[str, Any]:
    entry: dict[str, Any] = {"version": column.version}
    if column.released:
        entry["released"] = column.released
    if column.gap:
        entry["gap"] = column.gap
    if column.companions:
        entry["companions"] = dict(column.companions)
    if any(one.status != "complete" for one in column.records):
        entry["status"] = [one.status for one in column.records]
    return entry


def _clause(line: VersionLine, clause: ClauseHistory) -> dict[str, Any]:
    runs = [
        [run.first, run.last, LETTERS[run.word], *(["other tests"] if run.other_tests else [])] for run in clause.runs
    ]
    points = [document(line, point) for point in clause.points]
    return {"runs": runs, "points": points} if points else {"runs": runs}


def document(line: VersionLine, point: ChangePoint) -> dict[str, Any]:
    """A change point."""
    moved = {"fails": point.fails, "passes": point.passes, "unsupported": point.refused}
    entry: dict[str, Any] = {
        "between": [point.before, point.after],
        "kind": point.kind,
        "words": [LETTERS[point.old], LETTERS[point.new]],
        "compared": point.compared,
    }
    prefix = f"{point.clause}/"
    for name, tests in moved.items():
        if tests:
            entry[name] = [len(tests), *(test.removeprefix(prefix) for test in tests[:_NAMED])]
    if point.otherwise:
        named = [[test.removeprefix(prefix), old, new] for test, old, new in point.otherwise[:_NAMED]]
        entry["otherwise"] = [len(point.otherwise), *named]
    also = alongside(line, point)
    if also:
        entry["with"] = list(also)
    entry["explained"] = [list(pair) for pair in explained(line, point)]
    return entry


def clause_document(name: str, histories: Sequence[LineHistory]) -> str:
    """One clause in every line that has it, with the texts of the page."""
    having = [(one.line, one.clauses[name]) for one in histories if name in one.clauses]
    facts = having[-1][1].facts
    entries = [
        {**header(line), **_clause(line, clause), "statement": statement(line, clause)} for line, clause in having
    ]
    head = {"version": VERSION, "clause": name, "level": facts.level, "requirement": facts.requirement}
    return _text({**head, "lines": entries}) + "\n"
