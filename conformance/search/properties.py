"""Property tests: Hypothesis generates and shrinks cases, and a failure prints a plain test to paste.

A law takes `subject`, `verdict`, `case` and other fixtures; `explore` turns it into a test:

    @clause("scaling.automaton")
    @explore(schedules(), examples=40)
    def test_the_scale_follows_the_automaton(subject, verdict, case): ...

The session's seed seeds the generator, so that a run can be repeated; `--profile=nightly` generates many more cases
from a new seed.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from conformance.checks.evidence import Abstention, Check, Verdict, Violation
from conformance.checks.subject import Subject
from frameworks.contract import Unsupported

Law = Callable[..., None]


def explore(cases: SearchStrategy[Any], examples: int) -> Callable[[Law], Law]:
    """Makes a law a test over `examples` cases, which are values whose `repr` recreates them.

    Cases that the framework does not support are skipped; if all are, the test is unsupported.
    """

    def decorate(law: Law) -> Law:
        signature = inspect.signature(law)
        wanted = [p for p in signature.parameters.values() if p.name != "case"]

        @functools.wraps(law)
        def test(subject: Subject, verdict: Verdict, **fixtures: Any) -> None:
            __tracebackhide__ = True
            search = _Search(law, cases, examples * subject.profile.factor, subject, fixtures)
            search.run(verdict, getattr(test, "pytestmark", []))

        test.__signature__ = signature.replace(parameters=wanted)  # type: ignore[attr-defined]
        test.law = law  # type: ignore[attr-defined]
        return test

    return decorate


class _Search:
    """One search: counts of judged cases, the last refusal, and the smallest failing case."""

    def __init__(
        self, law: Law, cases: SearchStrategy[Any], examples: int, subject: Subject, fixtures: dict[str, Any]
    ) -> None:
        self._law, self._cases, self._examples = law, cases, examples
        self._subject, self._fixtures = subject, fixtures
        self._judged = 0
        self._refused: Exception | None = None
        self._failing: list[Any] = []
        self._error: Exception | None = None
        self._settings = subject.framework.global_state()
        self._found: Verdict = Verdict()
        self._end = math.inf

    def run(self, verdict: Verdict, marks: list[Any]) -> None:
        """Checks the law for the cases; `verdict` gets the checks of the smallest failing case, or of the last one."""
        __tracebackhide__ = True
        chosen = self._subject.profile.seed
        drawn = settings(
            max_examples=self._examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        hold = seed(self._subject.seed if chosen is None else chosen)(drawn(given(self._cases)(self._judge)))
        try:
            hold()
        except Exception as error:
            if not self._failing:
                raise
            _merge(verdict, self._found)
            seen = self._error or error
            if isinstance(seen, Violation):
                raise Violation(seen.signature, f"{seen}\n{self._as_test(marks)}") from None
            seen.__notes__ = [self._as_test(marks)]
            raise seen from None
        if not self._judged and self._refused is not None:
            raise self._refused
        _merge(verdict, self._found)
        verdict.checks.append(Check("the law holds for every drawn case", True, f"{self._judged} cases", "all"))

    def _judge(self, case: Any) -> None:
        if time.monotonic() > self._end and case != self._failing[-1]:
            return
        found = Verdict()
        self._subject.framework.restore_global_state(self._settings)
        try:
            self._law(self._subject, found, case, **self._fixtures)
        except (Unsupported, Abstention) as refusal:
            self._refused = refusal
        except Exception as error:
            if not self._failing:
                self._end = time.monotonic() + self._subject.profile.shrinking_s
            self._failing.append(case)
            self._found, self._error = found, error
            raise
        else:
            self._judged += 1
            self._found = found

    def _as_test(self, marks: list[Any]) -> str:
        names = [mark.args[0] for mark in marks if isinstance(mark, pytest.Mark) and mark.name == "clause"]
        others = "".join(f", {name}" for name in self._fixtures)
        given = "".join(f", {name}={name}" for name in self._fixtures)
        return (
            "the smallest case found, as a test of its own:\n\n"
            f'@clause("{names[0] if names else "..."}")\n'
            f"def {self._law.__name__}_example(subject: Subject, verdict: Verdict{others}) -> None:\n"
            f"    {self._law.__name__}.law(subject, verdict, {self._failing[-1]!r}{given})\n"
        )


def _merge(verdict: Verdict, found: Verdict) -> None:
    verdict.checks.extend(found.checks)
    verdict.observations.update(found.observations)
    verdict.measurements.update(found.measurements)
    verdict.traces.update(found.traces)
