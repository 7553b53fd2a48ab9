"""Runs and change points of clauses: what is a change of the framework, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from results.history.changes import LineHistory, history
from results.history.folders import PlannedCell
from results.history.statements import alongside, between, change, interval, statement
from tests.support.versions import CLAUSE, history_of, judged, only_line


def said(one: LineHistory, clause: str = CLAUSE) -> str:
    """The statement about a clause."""
    return statement(one.line, one.clauses[clause])


def series(*words: str) -> LineHistory:
    """Versions 2.0, 2.1, ... of one test with these outcomes."""
    return history_of(*((f"2.{place}", {"test_a": word}) for place, word in enumerate(words)))


@pytest.mark.parametrize(
    ("words", "want", "points"),
    [
        (("fail", "pass", "pass", "fail"), "≤2.0 fail · 2.1–2.2 pass · 2.3 fail", 2),
        (("pass", "pass"), "≤2.0–2.1 pass", 0),
        (("pass",), "≤2.0 pass", 0),
        (("unsupported", "pass", "unsupported", "pass"), "≤2.0 unsupported · 2.1 pass · 2.2 unsupported · 2.3 pass", 3),
        (("known", "fail", "misdeclared"), "≤2.0–2.2 fail", 0),
        (("pass", "fixed"), "≤2.0–2.1 pass", 0),
        (("pass", "abstain", "pass"), "≤2.0 pass · 2.1 abstain · 2.2 pass", 0),
        (("pass", "unstable", "pass"), "≤2.0 pass · 2.1 unstable · 2.2 pass", 0),
        (("not offered", "pass"), "2.0 not offered · ≤2.1 pass", 0),
        (("fail", "unstable", "pass"), "≤2.0 fail · 2.1 unstable · 2.2 pass", 1),
        (("pass", "not offered", "unsupported"), "≤2.0 pass · 2.1 not offered · 2.2 unsupported", 1),
    ],
)
def test_runs_of_equal_words_and_the_changes_between_them(words: tuple[str, ...], want: str, points: int) -> None:
    one = series(*words)
    assert said(one) == want
    assert len(one.points) == points


def test_a_change_lies_between_the_nearest_judged_versions() -> None:
    one = series("fail", "unstable", "pass")
    (point,) = one.points
    assert interval(one.line, point) == "2.0 → 2.2"
    assert [column.version for column in between(one.line, point)] == ["2.1"]
    assert change(point) == "fail → pass: 1 newly passing of 1 test"
    assert not point.worse


def test_another_signature_of_the_same_word_is_marked() -> None:
    one = series("fail: raises", "known: raises", "fail: differs")
    assert said(one) == "≤2.0–2.1 fail · 2.2 fail (otherwise)"
    (point,) = one.points
    assert (point.kind, point.otherwise) == ("failure", ((f"{CLAUSE}/test_a", "raises", "differs"),))


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        (("fail", "pass"), ("fail", "fail"), "fails in more tests: 1 newly failing"),
        (("fail", "fail"), ("fail", "pass"), "fails in fewer tests: 1 newly"),
        (("fail", "pass"), ("pass", "fail"), "fails otherwise: 1 newly failing, 1"),
        (("pass", "unsupported"), ("pass", "pass"), "passes with other support"),
        (("pass", "pass"), ("pass", "unsupported"), "passes with other support"),
    ],
)
def test_tests_that_move_below_an_equal_word(before: Sequence[str], after: Sequence[str], want: str) -> None:
    sides = (dict(zip(("test_a", "test_b"), words, strict=True)) for words in (before, after))
    one = history_of(*zip(("2.0", "2.1"), sides, strict=True))
    (point,) = one.points
    assert change(point).startswith(want)
    assert point.worse is ("newly failing" in change(point) or "newly unsupported" in change(point))


def test_a_test_that_only_some_records_have_changes_nothing() -> None:
    one = history_of(
        ("2.0", {"test_a": "pass"}), ("2.1", {"test_a": "pass", "test_new": "fail"}), ("2.2", {"test_a": "pass"})
    )
    assert one.points == ()
    assert said(one) == "≤2.0 pass · 2.1 fail (by other tests) · 2.2 pass (by other tests)"


def test_a_version_without_a_test_does_not_hide_its_change() -> None:
    both = {"test_a": "pass", "test_b": "pass"}
    one = history_of(("2.0", both), ("2.1", {"test_a": "pass"}), ("2.2", {"test_a": "pass", "test_b": "fail"}))
    (point,) = one.points
    assert (interval(one.line, point), point.fails) == ("2.0 → 2.2", (f"{CLAUSE}/test_b",))


def test_a_change_is_not_reported_again_over_a_wider_interval() -> None:
    one = history_of(
        ("2.0", {"test_a": "pass", "test_b": "pass"}),
        ("2.1", {"test_a": "fail"}),
        ("2.2", {"test_a": "fail", "test_b": "pass"}),
    )
    assert [interval(one.line, point) for point in one.points] == ["2.0 → 2.1"]


@pytest.mark.parametrize("changes", [{"revision": 2}, {"revision": 0}])
def test_another_revision_is_no_change(changes: dict[str, Any]) -> None:
    one = history(only_line(judged("2.0", {"test_a": "pass"}), judged("2.1", {"test_a": "fail"}, **changes)))
    assert one.points == ()
    assert said(one) == "≤2.0 pass · 2.1 fail (by other tests)"


def test_versions_are_in_the_order_of_pep_440() -> None:
    one = history_of(
        *((version, {"test_a": "pass"}) for version in ("2.10.0", "2.9.1", "2.10.0rc2", "2.10.0rc10", "2.10.0.post1"))
    )
    order = [column.version for column in one.line.columns]
    assert order == ["2.9.1", "2.10.0rc2", "2.10.0rc10", "2.10.0", "2.10.0.post1"]
    assert said(one) == "≤2.9.1–2.10.0.post1 pass"


def test_the_newest_version_judged_twice_is_one_column() -> None:
    twice = ("2.1", {"test_a": "pass", "test_b": "pass"}), ("2.1", {"test_a": "fail", "test_b": "pass"})
    one = history_of(("2.0", {"test_a": "pass", "test_b": "pass"}), *twice)
    assert [len(column.records) for column in one.line.columns] == [1, 2]
    assert (said(one), one.points) == ("≤2.0–2.1 pass", ())
    alone = history_of(("2.0", {"test_a": "pass"}), ("2.1", {"test_a": "pass"}), ("2.1", {"test_a": "fail"}))
    assert said(alone) == "≤2.0 pass · 2.1 unstable"


def test_a_gap_between_equal_words_is_not_claimed() -> None:
    cells = [
        PlannedCell("torch", "2.1", "torch", "eager", "no wheel", released="2025-01-02", reason="none for cp311"),
        PlannedCell("torch", "2.2", "torch", "eager", "judged", released="2025-03-04", record="x.json"),
    ]
    newest = judged("2.2", {"test_a": "fail"})
    one = history(only_line(judged("2.0", {"test_a": "fail"}), planned=[(cells[0], None), (cells[1], newest)]))
    assert said(one) == "≤2.0 fail · 2.1 not judged (no wheel: none for cp311) · 2.2 fail (from 2025-03-04)"
    assert one.points == ()


def test_a_machine_that_lacks_an_instruction_set_explains_its_refusals() -> None:
    old, new = judged("2.0", {"test_a": "pass"}), judged("2.1", {"test_a": "unsupported"})
    test, state = f"{CLAUSE}/test_a", new.cases[CLAUSE][f"{CLAUSE}/test_a"]
    needing = {CLAUSE: {test: replace(state, reason=frozenset({"needs", "avx512f"}))}}
    lacking = replace(new, instruction_sets=frozenset({"avx2"}), cases=needing)
    full = replace(old, instruction_sets=frozenset({"avx2", "avx512f"}))
    assert history(only_line(full, lacking)).points == ()
    assert len(history(only_line(replace(full, instruction_sets=frozenset({"avx2"})), lacking)).points) == 1


def test_companions_that_changed_along_are_named() -> None:
    one = history(
        only_line(
            judged("0.6.2+flax.0.10.7.optax.0.2.5", {"test_a": "fail"}),
            judged("0.9.2+flax.0.10.7.optax.0.2.8", {"test_a": "pass"}),
        )
    )
    assert alongside(one.line, one.points[0]) == ("optax 0.2.5 → 0.2.8",)
