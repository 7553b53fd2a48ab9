"""Searches for a case that breaks a law: Hypothesis generates cases and shrinks the first failure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, GLOBAL_CONSTANTS, HypothesisProvider
from hypothesis.strategies import SearchStrategy

from frameworks.contract import Unsupported

INDEPENDENT = "conformance-independent"
"""Name of the Hypothesis backend that generates every case independently.

Hypothesis' own makes most cases from an earlier one by repeating parts of it, which finds crashes of a parser sooner,
and leaves a few hundred programs with a few dozen that differ.
"""


class IndependentDraws(HypothesisProvider):
    """Hypothesis' own distributions. A backend of another name is asked for each case from the start.

    Without the numbers and texts of the loaded source files, so that a seed gives the same cases in every process.
    """

    _local_constants = GLOBAL_CONSTANTS


AVAILABLE_PROVIDERS[INDEPENDENT] = f"{IndependentDraws.__module__}.{IndependentDraws.__qualname__}"

C = TypeVar("C")
F = TypeVar("F")


class _Over(BaseException):
    """The time for shrinking is over; not an `Exception`, so that Hypothesis stops."""


class _Failing(Exception):
    """The law does not hold for a case."""


@dataclass
class Search(Generic[C, F]):
    """One exploration of a law.

    Attributes:
        judge: the failure of a case, None if there is none; raises `Unsupported` if the framework refuses it.
        enough: number of passing cases after which the search ends.
        refusals: what `judge` raises for a case that cannot be judged.
        judged, refused: number of judged cases, and of cases that the framework refused.
        refusal: the last refusal.
        smallest: the last failing case with its failure, shrunk as far as time allowed.
    """

    judge: Callable[[C], F | None]
    enough: float = math.inf
    refusals: tuple[type[Exception], ...] = (Unsupported,)
    judged: int = 0
    refused: int = 0
    refusal: Exception | None = None
    smallest: tuple[C, F] | None = None
    _end: float = field(default=math.inf, repr=False)
    _raised: Exception | None = field(default=None, repr=False)

    def run(self, cases: SearchStrategy[C | None], examples: int, chosen: int, shrinking_s: float) -> None:
        """Generates up to `examples` cases from a seed until one breaks the law, and shrinks that one.

        None is drawn where there is no case to judge. What `judge` raises is raised for the case that it was met with.
        """
        phases = (Phase.generate, Phase.shrink) if shrinking_s > 0 else (Phase.generate,)

        def hold(case: C | None) -> None:
            if case is None or self._raised is not None or (self.judged >= self.enough and self.smallest is None):
                return
            if time.monotonic() > self._end:
                raise _Over
            try:
                failure = self.judge(case)
            except self.refusals as refusal:
                self.refused, self.refusal = self.refused + 1, refusal
                return
            except Exception as error:
                self._raised = error
                raise
            self.judged += 1
            if failure is not None:
                if self.smallest is None:
                    self._end = time.monotonic() + shrinking_s
                self.smallest = case, failure
                raise _Failing

        drawn = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            backend=INDEPENDENT,
        )
        try:
            seed(chosen)(drawn(given(cases)(hold)))()
        except (_Failing, Unsatisfiable):
            pass
        except BaseException:
            if self._raised is not None:
                raise self._raised from None
            if self.smallest is None:
                raise
