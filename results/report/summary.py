"""The first sentences of the page: how much was read, what fails where, what differs. Each number links to its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from results.compare.pairing import Comparisons
from results.record.outcomes import Outcome
from results.report.matrix import ClauseRow, Family
from results.report.runs import FrameworkColumns
from results.report.text import TextPart
from results.show.clauses import FAILURE_OUTCOMES, number
from results.show.portability import Portability

FAILING = "any failure"
"""The choice of outcomes of clauses that do not hold, expected or not."""

UNEXPECTED = "unexpected failure"
"""The choice of outcomes of clauses that do not hold, and that no expectation names."""

DISAGREE = "frameworks disagree"
SPLIT = "passes in one, fails in another"
"""Choices of clauses across frameworks: the first includes the second, and the clauses that differ."""

CHOICES = {FAILING: FAILURE_OUTCOMES, UNEXPECTED: FAILURE_OUTCOMES - {Outcome.KNOWN}}
"""Outcomes by the choice that stands for several."""

Sentence = tuple[TextPart, ...]


def sentences(
    families: Sequence[Family], frameworks: Sequence[FrameworkColumns], tests: int, comparisons: Comparisons
) -> Iterator[Sentence]:
    """The sentences, in pieces; a piece with an address filters the matrix, or leads to the changes.

    Args:
        tests: how many there are in all records.
    """
    rows = [row for family in families for row in family.rows]
    records = sum(len(each.runs) for each in frameworks)
    was, test = "was" if records == 1 else "were", "test" if tests == 1 else "tests"
    read = f"{number(records, 'record')} of {number(len(frameworks), 'framework')} {was} read"
    yield (TextPart(f"{read}: {number(len(rows), 'clause')}, {tests:,} {test}."),)
    yield _failing(rows, frameworks)
    if len(frameworks) > 1:
        yield _disagreeing(rows)
    if comparisons.pairs:
        yield _changed(comparisons)


def _failing(rows: Sequence[ClauseRow], frameworks: Sequence[FrameworkColumns]) -> Sentence:
    failing = _where(rows, frameworks, FAILING, "in at least one run")
    if not failing:
        return (TextPart("No clause fails."),)
    unexpected = _where(rows, frameworks, UNEXPECTED, "unexpectedly") or [TextPart("every failure is a known one")]
    return (*failing, TextPart("; "), *unexpected, TextPart("."))


def _where(rows: Sequence[ClauseRow], frameworks: Sequence[FrameworkColumns], choice: str, how: str) -> list[TextPart]:
    """How many clauses have one of the outcomes of a choice, in all and in each framework; nothing if none has."""
    count = _count(rows, [run for each in frameworks for run in each.runs], CHOICES[choice])
    if not count:
        return []
    pieces = [_filter(number(count, "clause"), outcome=choice), TextPart(f" {_verb('fail', count)} {how} (")]
    here = [(each, _count(rows, each.runs, CHOICES[choice])) for each in frameworks]
    for place, (each, result) in enumerate(pair for pair in here if pair[1]):
        pieces.append(TextPart(f"{', ' if place else ''}{each.name} "))
        pieces.append(_filter(str(result), outcome=choice, run=each.slug))
    return [*pieces, TextPart(")")]


def _count(rows: Sequence[ClauseRow], runs: Sequence[int], outcomes: frozenset[Outcome]) -> int:
    """How many clauses have one of these outcomes in one of these runs."""
    return sum(any(outcomes & row.cells[run].tests.keys() for run in runs) for row in rows)


def _disagreeing(rows: Sequence[ClauseRow]) -> Sentence:
    split, differing = sum(row.split for row in rows), sum(row.differs for row in rows)
    if not split + differing:
        return (TextPart("The frameworks disagree on no clause."),)
    passing = f"{split} {_verb('pass', split)} in one framework and {_verb('fail', split)} in another"
    others = f"{differing} {_verb('differ', differing)} in support or in observed values"
    parts = [_filter(passing, across=SPLIT)] if split else []
    if differing:
        parts += [*([TextPart(", ")] if split else []), _filter(others, across=Portability.DIFFERS.value)]
    disagree = _filter(number(split + differing, "clause"), across=DISAGREE)
    return (TextPart("The frameworks disagree on "), disagree, TextPart(": "), *parts, TextPart("."))


def _verb(verb: str, count: int) -> str:
    return f"{verb}{'es' if verb.endswith('s') else 's'}" if count == 1 else verb


def _changed(comparisons: Comparisons) -> Sentence:
    worse = sum(change.kind.worse for pair in comparisons.pairs for change in pair.changes)
    text = f"{number(worse, 'change')} for the worse" if worse else "no change for the worse"
    pairs = number(len(comparisons.pairs), "comparison")
    return (TextPart("Since the earlier records: "), TextPart(text, "#changes"), TextPart(f" in {pairs}."))


def _filter(text: str, **chosen: str) -> TextPart:
    return TextPart(text, f"#?{urlencode(chosen)}")
