"""The end of a run of a user's own adapter: clauses that fail with their rule, then counts with reasons."""

from __future__ import annotations

from conformance.runner.summary import closing_lines, source_for
from conformance.spec.clauses import load_clauses
from results.record.model import TestVerdict
from results.record.outcomes import Outcome

CLIP = "scaling.unscales-before-clipping"


def verdict(case: str, outcome: Outcome, message: str = "", reason: str = "") -> TestVerdict:
    repro = f"python -m pytest conformance/suites/test_x.py::{case}"
    return TestVerdict(f"{CLIP}/{case}", CLIP, outcome, message=message, reason=reason, repro=repro)


def test_a_clause_that_fails_is_quoted_once_with_its_first_difference() -> None:
    judged = [
        verdict("test_a", Outcome.PASS),
        verdict("test_b", Outcome.FAIL, "step: got 5, want 1"),
        verdict("test_c", Outcome.FAIL, "step: got 7, want 1"),
        verdict("test_d", Outcome.UNSUPPORTED, reason="the loop ignores recipe.clip"),
    ]
    first, _, clause, rule, source, difference, repeat, _, counts = closing_lines(judged, "torch")
    assert first == "clauses that fail: 1"
    assert clause == f"{CLIP}: 2 of 3 tests fail"
    assert rule.strip() == f"rule: {' '.join(load_clauses()[CLIP].requirement.split())}"
    assert source.strip() == "source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html"
    assert difference.strip() == "fail: step: got 5, want 1"
    assert repeat.endswith("/conformance/suites/test_x.py::test_b")
    assert repeat.startswith("  repeat: python -m pytest /")
    assert counts == "1 tests pass, 1 do not apply (1: the loop ignores recipe.clip)."


def test_nothing_that_fails_is_said_so() -> None:
    assert closing_lines([verdict("test_a", Outcome.PASS)], "torch") == ["clauses that fail: none", "", "1 tests pass."]


def test_a_source_of_the_framework_comes_first_and_any_other_else() -> None:
    clause = load_clauses()[CLIP]
    assert source_for(clause, "torch").startswith("https://docs.pytorch.org/")
    assert source_for(clause, "keras") == "Pascanu et al. 2013, arXiv:1211.5063"
