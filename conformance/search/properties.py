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
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis.strategies import SearchStrategy

from conformance.checks.evidence import Abstention, Check, Verdict, Violation
from conformance.checks.subject import Subject
from conformance.search.search import Search
from frameworks.contract import Unsupported

PropertyTest = Callable[..., None]


DRAWS = 4
"""Cases that may be drawn for each one to judge: a framework without a format refuses those that have it."""


class _Failed(NamedTuple):
    """The checks of a failing case, and what it raised."""

    verdict: Verdict
    error: Exception


def explore(cases: SearchStrategy[Any], examples: int) -> Callable[[PropertyTest], PropertyTest]:
    """Makes a law a test over `examples` cases, which are values whose `repr` recreates them.

    Cases that the framework does not support are replaced; if it supports none, the test is unsupported.
    """

    def decorate(law: PropertyTest) -> PropertyTest:
        signature = inspect.signature(law)
        wanted = [p for p in signature.parameters.values() if p.name != "case"]

        @functools.wraps(law)
        def test(subject: Subject, verdict: Verdict, **fixtures: Any) -> None:
            __tracebackhide__ = True
            settings, profile, last = subject.framework.global_state(), subject.profile, [Verdict()]

            def judge(case: Any) -> _Failed | None:
                result = Verdict()
                subject.framework.restore_global_state(settings)
                try:
                    law(subject, result, case, **fixtures)
                except (Unsupported, Abstention):
                    raise
                except Exception as error:
                    return _Failed(result, error)
                last[:] = [result]
                return None

            enough = examples * profile.factor
            search: Search[Any, _Failed] = Search(judge, enough, refusals=(Unsupported, Abstention))
            chosen = subject.seed if profile.seed is None else profile.seed
            search.run(cases, DRAWS * enough, chosen, profile.shrinking_s)
            if search.smallest is not None:
                case, (result, error) = search.smallest
                _merge(verdict, result)
                pasted = _as_test(law, case, fixtures, getattr(test, "pytestmark", []))
                if isinstance(error, Violation):
                    raise Violation(error.signature, f"{error}\n{pasted}") from None
                error.__notes__ = [pasted]
                raise error from None
            if not search.judged and search.refusal is not None:
                raise search.refusal
            _merge(verdict, last[0])
            verdict.checks.append(Check("the law holds for every drawn case", True, f"{search.judged} cases", "all"))

        test.__signature__ = signature.replace(parameters=wanted)  # type: ignore[attr-defined]
        test.law = law  # type: ignore[attr-defined]
        return test

    return decorate


def _as_test(law: PropertyTest, case: Any, fixtures: dict[str, Any], marks: list[Any]) -> str:
    names = [mark.args[0] for mark in marks if isinstance(mark, pytest.Mark) and mark.name == "clause"]
    others = "".join(f", {name}" for name in fixtures)
    given = "".join(f", {name}={name}" for name in fixtures)
    return (
        "the smallest case found, as a test of its own:\n\n"
        f'@clause("{names[0] if names else "..."}")\n'
        f"def {law.__name__}_example(subject: Subject, verdict: Verdict{others}) -> None:\n"
        f"    {law.__name__}.law(subject, verdict, {case!r}{given})\n"
    )


def _merge(verdict: Verdict, other: Verdict) -> None:
    verdict.checks.extend(other.checks)
    verdict.observations.update(other.observations)
    verdict.measurements.update(other.measurements)
    verdict.traces.update(other.traces)
