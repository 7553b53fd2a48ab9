"""The comparison of records: what counts as worse, what cannot be compared, and how it is told."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from results.compare.changes import Change, ChangeKind
from results.compare.comparison import compare
from results.compare.pairing import Comparisons, compare_sets
from results.compare.ratio import FEWEST
from results.record.files import RecordError
from results.record.reading import (
    CheckResult,
    ClauseText,
    Measurement,
    Observation,
    Outcome,
    Record,
    Series,
    Suite,
    TestVerdict,
    Variant,
)
from results.record.values import same
from results.show.differences import document, draw, grouped, markdown, to_text

CLAUSE = "scaling.stays-finite"
DATE = "2026-01-02T03:04:05+00:00"
TESTS = tuple(f"suites/test_a.py::test_{name}" for name in ("a", "b[1]", "b[2]"))
BOUND = CheckResult("distance", 0.5, 1.0, None, True)
TIME = "test_b[1]"
BASE = Record(
    Suite("0.1"),
    Series("torch", "cpu", "cpu", "eager"),
    Variant("2.13.0", {"numpy": "2.3"}),
    DATE,
    0,
    "",
    {CLAUSE: ClauseText("MUST", "…", "", (), "scaling")},
    DATE,
    1.0,
    "complete",
    tuple(TestVerdict(test, CLAUSE, Outcome.PASS, checks=(BOUND,), code_hash="c", seed=0) for test in TESTS),
    (
        Observation(CLAUSE, "formats", "test_a", {"add": "float16", "mul": {"low": math.nan}}),
        Observation(CLAUSE, "rule", "test_b[1]", "drop"),
    ),
    (Measurement(CLAUSE, "bytes", "test_a", "B", (100.0,)), Measurement(CLAUSE, "time", "test_b[1]", "s", (1.0,) * 30)),
)


def verdict(record: Record, place: int, **changes: Any) -> Record:
    """The record with one of its verdicts changed."""
    verdicts = list(record.verdicts)
    verdicts[place] = replace(verdicts[place], **changes)
    return replace(record, verdicts=tuple(verdicts))


def observed(**changes: Any) -> Record:
    """The base with other observations, by "KEY/CASE"."""
    places = {name: Observation(CLAUSE, *name.split("/"), value) for name, value in changes.items()}
    kept = (one for one in BASE.observations if f"{one.key}/{one.case}" not in places)
    return replace(BASE, observations=(*kept, *places.values()))


def measured(samples: Mapping[str, tuple[float, ...]]) -> Record:
    """The base with other samples."""
    named = (f"{m.key}/{m.case}" for m in BASE.measurements)
    kept = (replace(m, samples=samples.get(name, m.samples)) for name, m in zip(named, BASE.measurements, strict=True))
    return replace(BASE, measurements=tuple(kept))


def test_a_record_beside_itself_is_no_worse() -> None:
    found = compare(BASE, BASE)
    assert (found.status, found.changes, found.compared) == (0, (), 3)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (Outcome.PASS, Outcome.FAIL, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.KNOWN, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.CRASH, ChangeKind.NEWLY_FAILING),
        (Outcome.UNSUPPORTED, Outcome.KNOWN, ChangeKind.NEWLY_FAILING),
        (Outcome.FIXED, Outcome.ERROR, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNSUPPORTED),
        (Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NEWLY_UNSUPPORTED),
        (Outcome.KNOWN, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNSUPPORTED),
        (Outcome.KNOWN, Outcome.FIXED, ChangeKind.NEWLY_PASSING),
        (Outcome.UNSUPPORTED, Outcome.PASS, ChangeKind.NEWLY_PASSING),
        (Outcome.PASS, Outcome.UNSTABLE, ChangeKind.UNSTABLE),
        (Outcome.FAIL, Outcome.UNSTABLE, ChangeKind.UNSTABLE),
        (Outcome.UNSTABLE, Outcome.PASS, ChangeKind.UNSTABLE),
        (Outcome.UNSTABLE, Outcome.UNSTABLE, None),
        (Outcome.FAIL, Outcome.KNOWN, None),
        (Outcome.PASS, Outcome.FIXED, None),
        (Outcome.UNSUPPORTED, Outcome.ABSTAIN, None),
    ],
)
def test_what_the_framework_did_decides(old: Outcome, new: Outcome, kind: ChangeKind | None) -> None:
    found = compare(verdict(BASE, 1, outcome=old), verdict(BASE, 1, outcome=new))
    assert [change.kind for change in found.changes] == ([] if kind is None else [kind])
    assert found.status == (1 if kind is not None and kind.worse else 0)
    assert all(change.subject == TESTS[1] for change in found.changes)


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
    assert (change.kind, change.new) == (ChangeKind.NEWLY_FAILING, "known (scale-inf), not confirmed in this version")


def test_what_did_not_repeat_says_what_it_came_to() -> None:
    new = verdict(BASE, 0, outcome=Outcome.UNSTABLE, message="not the same twice", repeats=("fail (x)", "pass"))
    found = compare(BASE, new)
    assert (found.status, [c.kind.worse for c in found.changes]) == (0, [False])
    assert found.changes[0].detail == "not the same twice repeated: fail (x), pass."
    assert "unstable" in to_text(Comparisons((found,)))


def test_a_test_that_came_or_went_is_told() -> None:
    fewer = replace(BASE, verdicts=BASE.verdicts[1:])
    assert [(c.kind, c.subject) for c in compare(BASE, fewer).changes] == [(ChangeKind.REMOVED, TESTS[0])]
    assert compare(BASE, fewer).status == 1
    assert [(c.kind, c.subject) for c in compare(fewer, BASE).changes] == [(ChangeKind.ADDED, TESTS[0])]
    assert compare(fewer, BASE).status == 0


def test_a_test_whose_code_changed_is_not_comparable() -> None:
    found = compare(BASE, verdict(BASE, 0, outcome=Outcome.FAIL, code_hash="d"))
    assert {c.kind for c in found.changes} == {ChangeKind.NOT_COMPARABLE}
    assert {c.subject for c in found.changes} == {TESTS[0]}
    assert (found.status, found.compared) == (0, 2)
    counted = verdict(measured({"bytes/test_a": (101.0,)}), 0, code_hash="d")
    assert {(c.kind, c.subject) for c in compare(BASE, counted).changes} == {
        (ChangeKind.NOT_COMPARABLE, TESTS[0]),
        (ChangeKind.NOT_COMPARABLE, "bytes/test_a"),
    }
    other = BASE
    for place in range(3):
        other = verdict(other, place, code_hash="d")
    assert compare(BASE, other).status == 2


def test_an_observation_is_compared_leaf_by_leaf() -> None:
    new = observed(**{"formats/test_a": {"add": "float32", "mul": {"low": math.nan}}})
    (change,) = compare(BASE, new).changes
    assert (change.kind, change.old, change.new) == (ChangeKind.OBSERVATION_CHANGED, "float16", "float32")
    assert change.subject == f"{CLAUSE}/formats/test_a › add"
    assert compare(BASE, new).status == 1


@pytest.mark.parametrize(("new", "kind"), [(0.906, None), (0.91, None), (0.7, ChangeKind.OBSERVATION_CHANGED)])
def test_an_observed_number_is_judged_by_the_bound_of_its_test(new: float, kind: ChangeKind | None) -> None:
    near = replace(BOUND, what="distance of the accuracy", measured=0.0, bound=0.05)
    records = [verdict(observed(**{"accuracy/test_a": value}), 0, checks=(near,)) for value in (0.906, new)]
    found = compare(*records)
    assert [c.kind for c in found.changes] == ([] if kind is None else [kind])
    unbound = [verdict(record, 0, checks=()) for record in records]
    assert [c.kind for c in compare(*unbound).changes] == ([ChangeKind.OBSERVATION_CHANGED] if new != 0.906 else [])


def test_an_observation_of_another_test_is_not_comparable() -> None:
    new = verdict(observed(**{"rule/test_b[1]": "keep"}), 1, code_hash="d")
    assert {c.kind for c in compare(BASE, new).changes} == {ChangeKind.NOT_COMPARABLE}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (101.0, ChangeKind.MEASURE_WORSE),
        (99.0, ChangeKind.MEASURE_BETTER),
        (100.0, None),
        (math.nan, ChangeKind.NOT_COMPARABLE),
    ],
)
def test_what_is_counted_is_compared_exactly(value: float, kind: ChangeKind | None) -> None:
    found = compare(BASE, measured({"bytes/test_a": (value,)}))
    assert [c.kind for c in found.changes] == ([] if kind is None else [kind])


def test_a_byte_more_is_told_in_full() -> None:
    (change,) = compare(measured({"bytes/test_a": (1e9,) * 3}), measured({"bytes/test_a": (1e9 + 1,)})).changes
    assert (change.kind, change.old, change.new) == (ChangeKind.MEASURE_WORSE, "1,000,000,000 B", "1,000,000,001 B")
    assert change.detail == "+1 B, ratio 1, counted exactly"


def timed(seed: int, ratio: float, pairs: int = FEWEST, controlled: bool = True) -> Record:
    """The base with times `ratio` times their control's, up to noise; each seed is a process of another speed."""
    rng = np.random.default_rng(seed)
    speed = rng.uniform(0.8, 1.2)
    control, samples = speed * (1.0 + rng.gamma(2.0, 0.01, (2, pairs)))
    times = Measurement(CLAUSE, "time", TIME, "s", tuple(ratio * samples), tuple(control) if controlled else ())
    return replace(BASE, measurements=(BASE.measurements[0], times))


@pytest.mark.parametrize("times", [2.0, 3.0, 0.5])
@pytest.mark.parametrize("controlled", [True, False])
def test_times_of_two_records_are_never_judged(times: float, controlled: bool) -> None:
    found = compare(timed(1, 1.0, controlled=controlled), timed(2, times, controlled=controlled))
    assert [c.kind for c in found.changes] == [ChangeKind.NOT_JUDGED]
    assert found.status == 0
    for told in (to_text(Comparisons((found,))), markdown(Comparisons((found,)))):
        assert "1 time not judged here" in told
        assert "run both versions in turn on one machine" in " ".join(told.split())


def test_a_time_beside_a_count_is_not_judged() -> None:
    assert [c.kind for c in compare(BASE, timed(2, 2.0)).changes] == [ChangeKind.NOT_JUDGED]


def test_many_times_are_told_in_one_line() -> None:
    records = [
        replace(BASE, measurements=tuple(replace(m, key=f"time {i}", samples=m.samples[::-1]) for i in range(200)))
        for m in (timed(1, 2.0).measurements[1], timed(2, 2.0).measurements[1])
    ]
    found = Comparisons((compare(*records),))
    assert "200 times not judged here" in markdown(found)
    assert all(len(told.splitlines()) < 15 for told in (to_text(found), markdown(found)))


@pytest.mark.parametrize(
    ("level", "old", "new", "kind", "measures"),
    [
        ("MEASUREMENT", Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NOT_JUDGED, ()),
        ("MEASUREMENT", Outcome.ABSTAIN, Outcome.PASS, ChangeKind.NOT_JUDGED, ()),
        ("MEASUREMENT", Outcome.ABSTAIN, Outcome.FAIL, ChangeKind.NEWLY_FAILING, ()),
        ("MEASUREMENT", Outcome.PASS, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNSUPPORTED, (ChangeKind.REMOVED,)),
        ("MUST", Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NEWLY_UNSUPPORTED, (ChangeKind.REMOVED,)),
    ],
)
def test_a_cost_whose_control_failed_is_not_judged(
    level: str, old: Outcome, new: Outcome, kind: ChangeKind, measures: tuple[ChangeKind, ...]
) -> None:
    leveled = replace(BASE, clauses={CLAUSE: replace(BASE.clauses[CLAUSE], level=level)})
    before, after = verdict(leveled, 1, outcome=old), verdict(leveled, 1, outcome=new)
    kept = BASE.measurements[:1]
    if new in (Outcome.ABSTAIN, Outcome.UNSUPPORTED):
        after = replace(after, measurements=kept)
    else:
        before = replace(before, measurements=kept)
        measures = (ChangeKind.ADDED,) if old is not Outcome.ABSTAIN else ()
    found = compare(before, after)
    assert sorted(change.kind for change in found.changes) == sorted((kind, *measures))


def test_times_of_one_record_beside_itself_need_no_control() -> None:
    record = timed(1, 2.0, controlled=False)
    assert compare(record, record).changes == ()


def test_a_bound_that_moved_is_told_and_is_not_worse() -> None:
    found = compare(BASE, verdict(BASE, 0, checks=(replace(BOUND, bound=2.0),)))
    assert [(c.kind, c.old, c.new) for c in found.changes] == [(ChangeKind.BOUND_CHANGED, "1", "2")]
    assert found.status == 0


def test_checks_of_one_name_are_held_against_each_other_in_turn() -> None:
    old = verdict(BASE, 0, checks=(BOUND, replace(BOUND, bound=7.0)))
    new = verdict(BASE, 0, checks=(BOUND, replace(BOUND, bound=8.0)))
    assert [(c.old, c.new) for c in compare(old, new).changes] == [("7", "8")]
    assert not compare(old, old).changes


def test_a_brief_table_leaves_out_what_is_not_worse() -> None:
    old = verdict(BASE, 0, outcome=Outcome.FAIL)
    found = compare_sets([old], [verdict(verdict(BASE, 0), 2, outcome=Outcome.FAIL)])
    shown = {}
    for brief in (False, True):
        console = Console(width=100, record=True, file=StringIO())
        draw(found, console, brief=brief)
        shown[brief] = console.export_text()
    assert "test_a" in shown[False]
    assert "test_a" not in shown[True]
    assert all("test_b[2]" in text for text in shown.values())


def test_the_gravest_changes_come_first() -> None:
    old = verdict(verdict(BASE, 0, outcome=Outcome.FAIL), 1, checks=(replace(BOUND, bound=7.0),))
    new = verdict(verdict(BASE, 0), 2, outcome=Outcome.FAIL)
    kinds = [change.kind for change in compare(old, new).changes]
    assert kinds == [ChangeKind.NEWLY_FAILING, ChangeKind.BOUND_CHANGED, ChangeKind.NEWLY_PASSING]


def test_another_draw_of_the_same_ensemble_is_no_other_bound() -> None:
    derivation = {"method": "ensemble", "origin": "abc"}
    old = verdict(BASE, 0, checks=(replace(BOUND, bound=1.0, derivation=derivation),))

    def told(bound: float, **more: str) -> bool:
        new = verdict(BASE, 0, checks=(replace(BOUND, bound=bound, derivation={**derivation, **more}),))
        return bool(compare(old, new).changes)

    assert not told(1.3)
    assert told(2.5)
    assert not told(9.0, parameter="0.bias"), "the bound of what is furthest out now"
    assert told(1.3, origin="def")
    assert not told(1.0 + 1e-9, origin="def")


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (replace(BASE, series=replace(BASE.series, framework="tf")), "another framework: torch and tf"),
        (replace(BASE, series=replace(BASE.series, mode="")), "another mode: eager and none"),
        (replace(BASE, series=replace(BASE.series, device_kind="H100")), "another kind of device: cpu and H100"),
        (replace(BASE, seed=3), "another seed: 0 and 3"),
        (replace(BASE, status="interrupted"), "the new run was interrupted"),
        (replace(BASE, selection="-k scaling"), "another selection of tests: all and -k scaling"),
        (replace(BASE, verdicts=()), ""),
    ],
)
def test_what_cannot_be_compared_reliably_is_refused(new: Record, told: str) -> None:
    found = compare(BASE, new)
    assert found.status == 2
    assert told in " ".join(found.refusals)


def test_sets_are_paired_by_series() -> None:
    tf = replace(BASE, series=replace(BASE.series, framework="tf", mode="graph"))
    paddle = replace(BASE, series=replace(BASE.series, framework="paddle"))
    found = compare_sets([BASE, tf], [verdict(tf, 0, outcome=Outcome.FAIL), BASE])
    assert [pair.status for pair in found.pairs] == [1, 0]
    assert found.status == 1
    lonely = compare_sets([BASE, tf], [BASE, paddle])
    assert lonely.status == 2
    assert lonely.unmatched == (
        "paddle eager cpu: only among the new records",
        "tf graph cpu: only among the old records",
    )
    for text in (markdown(lonely), to_text(lonely)):
        assert "tf graph cpu: only among the old records" in text
    with pytest.raises(RecordError, match=r"two of them are of torch eager cpu \(2.13.0 and 2.13.0\)"):
        compare_sets([BASE, BASE], [BASE, tf])


def test_changes_that_are_alike_are_told_together() -> None:
    new = verdict(verdict(BASE, 1, outcome=Outcome.FAIL), 2, outcome=Outcome.FAIL)
    (group,) = grouped(compare(BASE, new).changes)
    assert group.subjects == "test_b[1], test_b[2]"


def test_many_changes_that_are_alike_are_counted() -> None:
    changes = [
        Change(ChangeKind.NEWLY_FAILING, CLAUSE, f"suites/test_a.py::test_c[{i}]", "pass", "fail") for i in range(6)
    ]
    (group,) = grouped(changes)
    assert group.subjects == "test_c[0], test_c[1], test_c[2], test_c[3] and 2 more"


def test_the_forms_say_the_same() -> None:
    new = verdict(BASE, 0, outcome=Outcome.FAIL, message="a | <b>@you</b> `c`", link="javascript:alert(1)")
    found = compare_sets([BASE], [replace(new, variant=Variant("2.14.0", {"numpy": "2.4"}))])
    console = Console(width=100, record=True, file=StringIO())
    draw(found, console)
    shown = console.export_text()
    for text in (shown, markdown(found)):
        assert "2.13.0 → 2.14.0" in text
        assert "1 newly failing" in text
        assert "numpy: 2.3 → 2.4" in text
        assert "test_a" in text
    assert "<b>" not in markdown(found)
    assert "@you" not in markdown(found)
    assert "](javascript" not in markdown(found)
    told = json.loads(json.dumps(document(found), allow_nan=False))
    assert (told["status"], told["pairs"][0]["changes"][0]["worse"]) == (1, True)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(), st.lists, max_leaves=5))
@settings(max_examples=50)
def test_every_value_equals_itself(value: Any) -> None:
    assert same(value, value)
    assert not same(value, [value])
