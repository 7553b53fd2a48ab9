"""The comparison of records: what counts as worse, and what cannot be compared."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.compare.changes import ChangeKind
from results.compare.comparison import compare
from results.compare.pairing import Comparisons, compare_sets
from results.record.files import RecordError
from results.record.reading import CheckResult, Outcome, Record
from results.record.values import same
from results.show.differences import markdown, to_text
from tests.support.small_record import BASE, BOUND, CLAUSE, TESTS, measured, observed, verdict


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (Outcome.PASS, Outcome.FAIL, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.KNOWN, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.CRASH, ChangeKind.NEWLY_FAILING),
        (Outcome.UNSUPPORTED, Outcome.KNOWN, ChangeKind.NEWLY_FAILING),
        (Outcome.FIXED, Outcome.ERROR, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.KNOWN, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.KNOWN, Outcome.FIXED, ChangeKind.NEWLY_PASSING),
        (Outcome.UNSUPPORTED, Outcome.PASS, ChangeKind.NEWLY_PASSING),
        (Outcome.PASS, Outcome.UNSTABLE, ChangeKind.UNSTABLE),
        (Outcome.FAIL, Outcome.UNSTABLE, ChangeKind.UNSTABLE),
        (Outcome.UNSTABLE, Outcome.PASS, ChangeKind.UNSTABLE),
        (Outcome.UNSTABLE, Outcome.UNSTABLE, None),
        (Outcome.FAIL, Outcome.KNOWN, None),
        (Outcome.PASS, Outcome.FIXED, None),
        (Outcome.UNSUPPORTED, Outcome.ABSTAIN, None),
        (Outcome.PASS, Outcome.NOT_OFFERED, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.KNOWN, Outcome.NOT_OFFERED, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.NOT_OFFERED, Outcome.PASS, ChangeKind.NEWLY_PASSING),
        (Outcome.NOT_OFFERED, Outcome.FAIL, ChangeKind.NEWLY_FAILING),
        (Outcome.UNSUPPORTED, Outcome.NOT_OFFERED, None),
        (Outcome.NOT_OFFERED, Outcome.UNSUPPORTED, None),
    ],
)
def test_what_the_framework_did_decides(old: Outcome, new: Outcome, kind: ChangeKind | None) -> None:
    result = compare(verdict(BASE, 1, outcome=old), verdict(BASE, 1, outcome=new))
    assert [change.kind for change in result.changes] == ([] if kind is None else [kind])
    assert result.status == (1 if kind is not None and kind.worse else 0)
    assert all(change.subject == TESTS[1] for change in result.changes)


def _on(record: Record, *instruction_sets: str) -> Record:
    return replace(record, variant=replace(record.variant, instruction_sets=instruction_sets))


def test_what_a_processor_lacks_is_not_worse() -> None:
    old = _on(BASE, "avx2", "avx512f", "gfni")
    other = observed(**{"rule/test_b[1]": "none"})
    refusing = verdict(other, 1, outcome=Outcome.UNSUPPORTED, reason="it wants avx512f")
    result = compare(old, _on(refusing, "avx2"))
    assert result.status == 0
    assert {change.kind for change in result.changes} == {ChangeKind.NOT_COMPARABLE}
    assert {change.detail for change in result.changes} == {"the new machine lacks avx512f: it wants avx512f"}
    assert "2: the new machine lacks avx512f" in " ".join(to_text(Comparisons((result,))).split())
    failing = verdict(_on(refusing, "avx2"), 0, outcome=Outcome.FAIL)
    assert compare(old, failing).status == 1, "a failure is one on every machine"


def test_bound_of_the_same_version_on_another_processor_is_not_compared() -> None:
    narrow, wide = (checked(BASE, bound) for bound in (0.0138, 0.1446))
    old = _on(narrow, "avx2", "avx512f")
    assert [change.kind for change in compare(old, _on(wide, "avx2", "avx512f")).changes] == [ChangeKind.BOUND_WIDER]
    assert compare(old, _on(wide, "avx2")).changes == ()
    newer = replace(
        _on(wide, "avx2"), variant=replace(wide.variant, framework_version="99", instruction_sets=("avx2",))
    )
    assert ChangeKind.BOUND_WIDER in {change.kind for change in compare(old, newer).changes}


def checked(record: Record, bound: float) -> Record:
    """The record with one check of this bound in its first test."""
    check = CheckResult("an error", 0.001, bound, None, True)
    return replace(record, verdicts=(replace(record.verdicts[0], checks=(check,)), *record.verdicts[1:]))


def test_a_refusal_excuses_no_other_test() -> None:
    old = _on(BASE, "avx2", "avx512f")
    refusing = _on(verdict(BASE, 1, outcome=Outcome.UNSUPPORTED, reason="it wants avx512f"), "avx2")
    silent = verdict(refusing, 2, outcome=Outcome.UNSUPPORTED, reason="it is gone")
    without = replace(refusing, verdicts=refusing.verdicts[1:])
    less = replace(refusing, observations=refusing.observations[1:])
    for new, kind in ((silent, ChangeKind.NEWLY_UNJUDGED), (without, ChangeKind.REMOVED), (less, ChangeKind.REMOVED)):
        result = compare(old, new)
        assert (result.status, kind in {change.kind for change in result.changes}) == (1, True)


def test_a_failure_that_is_known_of_the_processor_is_not_worse() -> None:
    old = _on(BASE, "avx2", "avx512f")
    known = {"outcome": Outcome.KNOWN, "signature": "inaccurate", "reason": "without avx512f it is cut off"}
    result = compare(old, _on(verdict(BASE, 1, **known), "avx2"))
    assert (result.status, [change.kind for change in result.changes]) == (0, [ChangeKind.NOT_COMPARABLE])
    assert result.changes[0].detail == "the new machine lacks avx512f: without avx512f it is cut off"
    for change in ({"outcome": Outcome.FAIL}, {"reason": "it is cut off"}):
        assert compare(old, _on(verdict(BASE, 1, **known | change), "avx2")).status == 1
    assert compare(old, _on(verdict(BASE, 1, **known), "avx2", "avx512f")).status == 1
    assert compare(_on(BASE, "avx2"), _on(verdict(BASE, 1, **known), "avx2")).status == 1


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (("avx2",), "it is not offered"),
        (("avx2", "avx512f"), "it wants avx512f"),
        (("avx2",), "it wants avx512fp16"),
        ((), "it wants avx512f"),
    ],
)
def test_a_refusal_that_the_processor_does_not_explain_is_worse(sets: tuple[str, ...], reason: str) -> None:
    refusing = verdict(BASE, 1, outcome=Outcome.UNSUPPORTED, reason=reason)
    result = compare(_on(BASE, "avx2", "avx512f"), _on(refusing, *sets))
    assert [change.kind for change in result.changes] == [ChangeKind.NEWLY_UNJUDGED]


def test_another_way_of_failing_is_worse() -> None:
    old, new = (verdict(BASE, 0, outcome=Outcome.KNOWN, signature=name) for name in ("scale-inf", "applied-inf"))
    (change,) = compare(old, new).changes
    assert (change.kind, change.old, change.new) == (
        ChangeKind.FAILING_OTHERWISE,
        "known (scale-inf)",
        "known (applied-inf)",
    )


def test_a_failure_that_another_version_explains_has_its_mark() -> None:
    new = verdict(BASE, 0, outcome=Outcome.KNOWN, signature="scale-inf", inferred_from="2.12.0")
    (change,) = compare(BASE, new).changes
    assert (change.kind, change.new) == (ChangeKind.NEWLY_FAILING, "known (scale-inf), not confirmed here")


def test_what_did_not_repeat_says_what_it_came_to() -> None:
    new = verdict(BASE, 0, outcome=Outcome.UNSTABLE, message="not the same twice", repeats=("fail (x)", "pass"))
    result = compare(BASE, new)
    assert (result.status, [c.kind.worse for c in result.changes]) == (0, [False])
    assert result.changes[0].detail == "not the same twice repeated: fail (x), pass."
    assert "unstable" in to_text(Comparisons((result,)))


def test_a_test_that_came_or_went_is_told() -> None:
    fewer = replace(BASE, verdicts=BASE.verdicts[1:])
    assert [(c.kind, c.subject) for c in compare(BASE, fewer).changes] == [(ChangeKind.REMOVED, TESTS[0])]
    assert compare(BASE, fewer).status == 1
    assert [(c.kind, c.subject) for c in compare(fewer, BASE).changes] == [(ChangeKind.ADDED, TESTS[0])]
    assert compare(fewer, BASE).status == 0


def test_a_test_of_another_setup_is_not_comparable() -> None:
    result = compare(BASE, verdict(BASE, 0, outcome=Outcome.FAIL, setup_hash="d"))
    assert {c.kind for c in result.changes} == {ChangeKind.NOT_COMPARABLE}
    assert {c.subject for c in result.changes} == {TESTS[0]}
    assert (result.status, result.compared) == (0, 2)
    assert [one.test for one in result.numbers] == [*TESTS[1:]]
    seen = verdict(observed(**{"rule/test_b[1]": "keep"}), 1, setup_hash="d")
    assert {c.kind for c in compare(BASE, seen).changes} == {ChangeKind.NOT_COMPARABLE}
    counted = verdict(measured({"bytes/test_a": (101.0,)}), 0, setup_hash="d")
    assert {(c.kind, c.subject) for c in compare(BASE, counted).changes} == {
        (ChangeKind.NOT_COMPARABLE, TESTS[0]),
        (ChangeKind.NOT_COMPARABLE, "bytes/test_a"),
    }
    other = BASE
    for place in range(3):
        other = verdict(other, place, setup_hash="d")
    assert compare(BASE, other).status == 2


def test_an_observation_is_compared_leaf_by_leaf() -> None:
    new = observed(**{"formats/test_a": {"add": "float32", "mul": {"low": math.nan}}})
    (change,) = compare(BASE, new).changes
    assert (change.kind, change.old, change.new) == (ChangeKind.OBSERVATION_CHANGED, "float16", "float32")
    assert change.subject == f"{CLAUSE}/formats/test_a › add"
    assert compare(BASE, new).status == 1


@pytest.mark.parametrize("key", ["reason", "instead"])
def test_the_words_of_a_reason_are_not_compared(key: str) -> None:
    old, new, other = (
        observed(**{"optimizer.clip/test_a": {"declared": declared, key: reason}})
        for declared, reason in ((False, "there is no clipping"), (False, "no clipping"), (True, ""))
    )
    assert compare(old, new).changes == ()
    assert [change.subject for change in compare(old, other).changes] == [f"{CLAUSE}/optimizer.clip/test_a › declared"]


@pytest.mark.parametrize(("new", "kind"), [(0.906, None), (0.91, None), (0.7, ChangeKind.OBSERVATION_CHANGED)])
def test_an_observed_number_is_judged_by_the_bound_of_its_test(new: float, kind: ChangeKind | None) -> None:
    near = replace(BOUND, what="distance of the accuracy", measured=0.0, bound=0.05)
    records = [verdict(observed(**{"accuracy/test_a": value}), 0, checks=(near,)) for value in (0.906, new)]
    result = compare(*records)
    assert [c.kind for c in result.changes] == ([] if kind is None else [kind])
    unbound = [verdict(record, 0, checks=()) for record in records]
    assert [c.kind for c in compare(*unbound).changes] == ([ChangeKind.OBSERVATION_CHANGED] if new != 0.906 else [])


@pytest.mark.parametrize(("new", "changes"), [(6.78025 * (1 + 5e-7), 0), (6.78025 * (1 + 5e-6), 1)])
def test_last_digits_of_an_observed_number_are_no_change(new: float, changes: int) -> None:
    sides = [verdict(observed(**{"distance/test_a": {"measured": at}}), 0, checks=()) for at in (6.78025, new)]
    assert len(compare(*sides).changes) == changes


def test_a_bound_that_moved_is_told_and_is_not_worse() -> None:
    result = compare(BASE, verdict(BASE, 0, checks=(replace(BOUND, bound=2.0),)))
    assert [(c.kind, c.old, c.new) for c in result.changes] == [(ChangeKind.BOUND_CHANGED, "1", "2")]
    assert result.status == 0


def test_checks_of_one_name_are_held_against_each_other_in_turn() -> None:
    old = verdict(BASE, 0, checks=(BOUND, replace(BOUND, bound=7.0)))
    new = verdict(BASE, 0, checks=(BOUND, replace(BOUND, bound=8.0)))
    assert [(c.old, c.new) for c in compare(old, new).changes] == [("7", "8")]
    assert not compare(old, old).changes


def test_the_gravest_changes_come_first() -> None:
    old = verdict(verdict(BASE, 0, outcome=Outcome.FAIL), 1, checks=(replace(BOUND, bound=7.0),))
    new = verdict(verdict(BASE, 0), 2, outcome=Outcome.FAIL)
    kinds = [change.kind for change in compare(old, new).changes]
    assert kinds == [ChangeKind.NEWLY_FAILING, ChangeKind.BOUND_CHANGED, ChangeKind.NEWLY_PASSING]


def test_another_draw_of_the_same_ensemble_is_no_other_bound() -> None:
    derivation = {"method": "ensemble", "origin": "abc"}
    old = verdict(BASE, 0, checks=(replace(BOUND, bound=1.0, derivation=derivation),))

    def is_reported(bound: float, **more: str) -> bool:
        new = verdict(BASE, 0, checks=(replace(BOUND, bound=bound, derivation={**derivation, **more}),))
        return bool(compare(old, new).changes)

    assert not is_reported(1.3)
    assert is_reported(2.5)
    assert not is_reported(9.0, parameter="0.bias"), "the bound of what is furthest out now"
    assert is_reported(1.3, origin="def")
    assert not is_reported(1.0 + 1e-9, origin="def")


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (replace(BASE, series=replace(BASE.series, framework="tf")), "different frameworks: torch and tf"),
        (replace(BASE, series=replace(BASE.series, mode="")), "different modes: eager and none"),
        (replace(BASE, series=replace(BASE.series, device_kind="H100")), "different kinds of device: cpu and H100"),
        (replace(BASE, seed=3), "different seeds: 0 and 3"),
        (replace(BASE, status="interrupted"), "the new run was interrupted"),
        (replace(BASE, verdicts=()), ""),
    ],
)
def test_what_cannot_be_compared_reliably_is_refused(new: Record, message: str) -> None:
    result = compare(BASE, new)
    assert result.status == 2
    assert message in " ".join(result.refusals)


PART = replace(BASE.only(TESTS[1:]), status="partial", selection="--tests=quick")


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (BASE, PART, 0),
        (PART, BASE, 0),
        (BASE, verdict(PART, 0, outcome=Outcome.FAIL), 1),
        (verdict(BASE, 0, outcome=Outcome.FAIL), PART, 0),
        (BASE, replace(PART.only(())), 2),
        (PART, replace(PART, selection="-k scaling"), 2),
    ],
    ids=["part", "then whole", "worse", "not selected", "nothing", "two parts"],
)
def test_a_part_is_compared_with_those_tests_of_the_whole(old: Record, new: Record, status: int) -> None:
    result = compare(old, new)
    assert result.status == status
    assert bool(result.refusals) is (old.selection == "--tests=quick" and new.selection == "-k scaling")
    assert {change.subject for change in result.changes} <= {*TESTS[1:2]}
    assert result.of == (0 if result.refusals else len(new.verdicts) if new.selection else len(old.verdicts))


def test_sets_are_paired_by_series() -> None:
    tf = replace(BASE, series=replace(BASE.series, framework="tf", mode="graph"))
    paddle = replace(BASE, series=replace(BASE.series, framework="paddle"))
    result = compare_sets([BASE, tf], [verdict(tf, 0, outcome=Outcome.FAIL), BASE])
    assert [pair.status for pair in result.pairs] == [1, 0]
    assert result.status == 1
    lonely = compare_sets([BASE, tf], [BASE, paddle])
    assert lonely.status == 2
    assert lonely.unmatched == (
        "paddle eager cpu: only among the new records",
        "tf graph cpu: only among the old records",
    )
    for text in (markdown(lonely), to_text(lonely)):
        assert "tf graph cpu: only among the old records" in text
        assert "cannot be judged: records without a partner: 2" in text
    with pytest.raises(RecordError, match=r"include two records of torch eager cpu \(2.13.0 and 2.13.0\)"):
        compare_sets([BASE, BASE], [BASE, tf])


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(), st.lists, max_leaves=5))
@settings(max_examples=50)
def test_every_value_equals_itself(value: Any) -> None:
    assert same(value, value)
    assert not same(value, [value])
