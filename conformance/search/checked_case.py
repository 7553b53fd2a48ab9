"""Laws that use the checks of `Verdict`: a failed check names the clause that it breaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from conformance.checks.evidence import Verdict, Violation, cleaned
from conformance.checks.subject import Subject
from conformance.search.adapter_settings import GenerativeSettings
from conformance.search.failure import Failure


class ClauseBroken(Exception):
    """A check failed; `clause` is the one that it breaks."""

    def __init__(self, clause: str, text: str) -> None:
        super().__init__(text)
        self.clause = clause


@contextmanager
def breaking(clause: str) -> Iterator[Verdict]:
    """A verdict for the checks of one clause.

    Raises:
        ClauseBroken: one of them fails.
    """
    try:
        yield Verdict()
    except Violation as broken:
        raise ClauseBroken(clause, cleaned(str(broken))) from None


class CheckedInstance(ABC):
    """An instance of a law whose checks name clauses."""

    @abstractmethod
    def check(self, subject: Subject) -> None:
        """Checks the law.

        Raises:
            ClauseBroken: it does not hold.
        """

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """The first failed check; its clause is the failure's name."""
        try:
            self.check(subject)
        except ClauseBroken as broken:
            return Failure(0, broken.clause, False, str(broken))
        return None

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """The clause that a failure breaks, and the message."""
        return failure.name, failure.breaking(failure.name)
