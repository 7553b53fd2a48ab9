"""The outcome of each clause in a run, and counts of clauses and tests by outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.record.files import one_line
from results.record.model import REFUSED, UNJUDGED, Outcome
from results.record.reading import Record, TestVerdict

GRAVITY = (
    Outcome.CRASH,
    Outcome.TIMEOUT,
    Outcome.ERROR,
    Outcome.FAIL,
    Outcome.MISDECLARED,
    Outcome.FIXED,
    Outcome.KNOWN,
    Outcome.UNSTABLE,
    Outcome.ABSTAIN,
    Outcome.NOT_OFFERED,
    Outcome.UNSUPPORTED,
    Outcome.PASS,
)
"""Outcomes by how soon somebody should look at them."""

FAILURE_OUTCOMES = frozenset(GRAVITY) - UNJUDGED - {Outcome.PASS, Outcome.FIXED, Outcome.UNSTABLE}
"""The clause failed, expected or not."""


def outcome(verdicts: Iterable[TestVerdict]) -> Outcome:
    """The outcome of a clause by the verdicts of its tests: the gravest among those that were not refused.

    So it is `pass` only if every test that was judged passed, `unsupported` only if all of them are, and `not offered`
    if all were refused and for one of them there was nothing to try.

    Raises:
        ValueError: there is no verdict.
    """
    return min({verdict.outcome for verdict in verdicts}, key=_rank)


def _rank(one: Outcome) -> int:
    return GRAVITY.index(one) + (len(GRAVITY) if one in REFUSED else 0)


def by_clause(record: Record) -> dict[str, list[TestVerdict]]:
    """The verdicts of each clause, the gravest first."""
    grouped = _grouped(record)
    for verdicts in grouped.values():
        verdicts.sort(key=lambda verdict: (GRAVITY.index(verdict.outcome), verdict.test))
    return grouped


def _grouped(record: Record) -> dict[str, list[TestVerdict]]:
    grouped: dict[str, list[TestVerdict]] = {}
    for verdict in record.verdicts:
        grouped.setdefault(verdict.clause, []).append(verdict)
    return grouped


@dataclass(frozen=True)
class Count:
    """How many clauses have each outcome, and how many tests."""

    clauses: Counter[Outcome]
    tests: Counter[Outcome]

    @classmethod
    def of(cls, grouped: Iterable[Sequence[TestVerdict]]) -> Count:
        """The count of clauses by the verdicts of each; a clause without a verdict is none."""
        judged = [verdicts for verdicts in grouped if verdicts]
        return cls(Counter(map(outcome, judged)), Counter(verdict.outcome for one in judged for verdict in one))

    @property
    def of_what(self) -> tuple[str, str]:
        """The two denominators in words, such as "30 clauses" and "172 tests"."""
        return number(self.clauses.total(), "clause"), number(self.tests.total(), "test")


def number(count: int, what: str) -> str:
    """A count with its noun, such as "1 clause" or "2 clauses"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def tally(record: Record) -> dict[str, Count]:
    """The count of each family of clauses that has a verdict."""
    families: dict[str, list[list[TestVerdict]]] = {}
    for name, verdicts in _grouped(record).items():
        families.setdefault(record.clauses[name].family, []).append(verdicts)
    return {family: Count.of(members) for family, members in families.items()}


def total(record: Record) -> Count:
    """The count of all clauses of a record."""
    return Count.of(_grouped(record).values())


def inferred(verdict: TestVerdict) -> bool:
    """Whether it is a known failure that was judged in another series only."""
    return verdict.outcome is Outcome.KNOWN and verdict.inferred_from != ""


def unconfirmed(record: Record) -> tuple[str, ...]:
    """A sentence about known failures that were judged in another series only; none if there are none."""
    origins = [verdict.inferred_from for verdict in record.verdicts if inferred(verdict)]
    if not origins:
        return ()
    judged, tests = one_line(", ".join(sorted(set(origins)))), number(len(origins), "test")
    return (f"known failures judged in {judged}, not confirmed here: {tests}",)
