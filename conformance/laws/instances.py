"""What a law is checked on: a drawn program and the oracle, a program and a variation of it, or single calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from conformance.judging.subject import Subject
from conformance.laws.attribution import attributed
from conformance.laws.declared import LawsOfAdapter
from conformance.laws.features import features
from conformance.laws.judging import Failure, against_the_oracle
from conformance.laws.programs import DrawnCase


class Instance(Protocol):
    """What a law is checked on: a program against the oracle, or a variation against the case itself."""

    def words(self) -> frozenset[str]:
        """Its features, which exclusions may name."""

    def failure(self, subject: Subject, laws: LawsOfAdapter) -> Failure | None:
        """What is wrong."""

    def clause(self, subject: Subject, laws: LawsOfAdapter, failure: Failure) -> tuple[str, str]:
        """The clause that a failure breaks, and the sentence that says so."""


@dataclass(frozen=True)
class Program:
    """A case, played by the framework and by the oracle."""

    case: DrawnCase

    def words(self) -> frozenset[str]:
        return features(self.case)

    def failure(self, subject: Subject, laws: LawsOfAdapter) -> Failure | None:
        return against_the_oracle(subject, laws, self.case)

    def clause(self, subject: Subject, laws: LawsOfAdapter, failure: Failure) -> tuple[str, str]:
        broken = attributed(self.case, failure, lambda case: against_the_oracle(subject, laws, case))
        return broken.clause, str(broken)
