"""Bytes and times of two records: what is counted is compared exactly, and times are not judged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from results.compare.changes import ChangeKind
from results.compare.comparison import compare
from results.compare.pairing import Comparisons
from results.record.reading import Outcome
from results.show.differences import markdown, to_text
from tests.support.small_record import BASE, CLAUSE, measured, timed, verdict


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
    result = compare(BASE, measured({"bytes/test_a": (value,)}))
    assert [c.kind for c in result.changes] == ([] if kind is None else [kind])


def test_a_byte_more_is_told_in_full() -> None:
    (change,) = compare(measured({"bytes/test_a": (1e9,) * 3}), measured({"bytes/test_a": (1e9 + 1,)})).changes
    assert (change.kind, change.old, change.new) == (ChangeKind.MEASURE_WORSE, "1,000,000,000 B", "1,000,000,001 B")
    assert change.detail == "+1 B, ratio 1, counted exactly"


@pytest.mark.parametrize("times", [2.0, 3.0, 0.5])
@pytest.mark.parametrize("controlled", [True, False])
def test_times_of_two_records_are_never_judged(times: float, controlled: bool) -> None:
    result = compare(timed(1, 1.0, controlled=controlled), timed(2, times, controlled=controlled))
    assert [c.kind for c in result.changes] == [ChangeKind.NOT_JUDGED]
    assert result.status == 0
    for text in (to_text(Comparisons((result,))), markdown(Comparisons((result,)))):
        assert "1 timing not judged here" in text
        assert "run both versions alternately on one machine" in " ".join(text.split())


def test_a_time_beside_a_count_is_not_judged() -> None:
    assert [c.kind for c in compare(BASE, timed(2, 2.0)).changes] == [ChangeKind.NOT_JUDGED]


def test_many_times_are_told_in_one_line() -> None:
    records = [
        replace(BASE, measurements=tuple(replace(m, key=f"time {i}", samples=m.samples[::-1]) for i in range(200)))
        for m in (timed(1, 2.0).measurements[1], timed(2, 2.0).measurements[1])
    ]
    result = Comparisons((compare(*records),))
    assert "200 timings not judged here" in markdown(result)
    assert all(len(text.splitlines()) < 15 for text in (to_text(result), markdown(result)))


@pytest.mark.parametrize(
    ("level", "old", "new", "kind", "measures"),
    [
        ("MEASUREMENT", Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NOT_JUDGED, ()),
        ("MEASUREMENT", Outcome.ABSTAIN, Outcome.PASS, ChangeKind.NOT_JUDGED, ()),
        ("MEASUREMENT", Outcome.ABSTAIN, Outcome.FAIL, ChangeKind.NEWLY_FAILING, ()),
        ("MEASUREMENT", Outcome.PASS, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNJUDGED, (ChangeKind.REMOVED,)),
        ("MUST", Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NEWLY_UNJUDGED, (ChangeKind.REMOVED,)),
    ],
)
def test_a_cost_whose_control_failed_is_not_judged(
    level: str, old: Outcome, new: Outcome, kind: ChangeKind, measures: tuple[ChangeKind, ...]
) -> None:
    leveled = replace(BASE, clauses={CLAUSE: replace(BASE.clauses[CLAUSE], level=level)})
    before, after = verdict(leveled, 1, outcome=old), verdict(leveled, 1, outcome=new)
    measurements = BASE.measurements[:1]
    if new in (Outcome.ABSTAIN, Outcome.UNSUPPORTED):
        after = replace(after, measurements=measurements)
    else:
        before = replace(before, measurements=measurements)
        measures = (ChangeKind.ADDED,) if old is not Outcome.ABSTAIN else ()
    result = compare(before, after)
    assert sorted(change.kind for change in result.changes) == sorted((kind, *measures))


def test_times_of_one_record_beside_itself_need_no_control() -> None:
    record = timed(1, 2.0, controlled=False)
    assert compare(record, record).changes == ()
