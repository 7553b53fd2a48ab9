"""Instances of laws: a generated program and the oracle, a program and a variation of it, or single calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from conformance.checks.subject import Subject
from conformance.generative.programs.case import GeneratedCase
from conformance.generative.programs.features import features
from conformance.generative.programs.judge import against_the_oracle
from conformance.generative.programs.triage import triaged
from conformance.search.adapter_settings import GenerativeSettings
from conformance.search.properties import Failure


class Instance(Protocol):
    """An instance of a law: a program compared with the oracle, or a variation compared with the case itself."""

    def words(self) -> frozenset[str]:
        """Features that exclusions may name."""

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """The failure, if there is one."""

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """The clause that a failure breaks, and the message."""


@dataclass(frozen=True)
class Program:
    """A case, run on the framework and on the oracle."""

    case: GeneratedCase

    def words(self) -> frozenset[str]:
        return features(self.case)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        return against_the_oracle(subject, laws, self.case)

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        broken = triaged(self.case, failure, lambda case: against_the_oracle(subject, laws, case))
        return broken.clause, str(broken)
