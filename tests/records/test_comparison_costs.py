"""Costs: counts of two records are compared exactly and times are not judged; the ratio of two costs of one process."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from results.compare.changes import ChangeKind
from results.compare.comparison import compare
from results.compare.pairing import Comparisons
from results.compare.ratio import CONFIDENCE, FEWEST, SMALLEST, TRIMMED, ratio
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


TIMES = 1.0 + np.random.default_rng(3).gamma(2.0, 0.02, (4, FEWEST))


def test_the_interval_of_pairs_is_students_of_the_trimmed_mean() -> None:
    logs = np.sort(np.log(TIMES[1] / TIMES[0]))
    cut = int(TRIMMED * FEWEST)
    winsorized = np.clip(logs, logs[cut], logs[-cut - 1])
    error = winsorized.std(ddof=1) / ((1.0 - 2.0 * TRIMMED) * math.sqrt(FEWEST))
    reach = stats.t.ppf(0.5 + CONFIDENCE / 2.0, FEWEST - 2 * cut - 1) * error
    result = ratio(tuple(TIMES[0]), tuple(TIMES[1]))
    middle = logs[cut:-cut].mean()
    assert (math.log(result.low), math.log(result.high)) == pytest.approx((middle - reach, middle + reach))


def test_a_few_disturbed_pairs_hardly_move_it() -> None:
    slow = TIMES[1].copy()
    slow[: FEWEST // 8] *= 10.0
    quiet, disturbed = ratio(TIMES[0], TIMES[1]), ratio(TIMES[0], slow)
    assert disturbed.low == pytest.approx(quiet.low, abs=0.01)
    assert not disturbed.grew


def test_noise_alone_is_seldom_called_a_change_and_five_percent_mostly_is() -> None:
    rng = np.random.default_rng(4)
    alarms = result = 0
    for _ in range(300):
        old, new = np.exp(rng.normal(0.0, 0.025, (4, FEWEST)))[:2]
        same, slower = ratio(old, new), ratio(old, 1.05 * new)
        alarms += same.grew or same.shrank
        result += slower.grew
    assert alarms <= 3
    assert result >= 285


def test_a_change_within_what_is_negligible_is_none() -> None:
    slower = (1.0 + 0.9 * SMALLEST) * TIMES[0] * np.tile([0.9999, 1.0001], FEWEST // 2)
    result = ratio(TIMES[0], slower)
    assert result.low > 1.0
    assert not result.grew


@pytest.mark.filterwarnings("error")
def test_what_does_not_vary_is_exact() -> None:
    assert ratio((4.0,), (5.0,)).low == ratio((4.0,), (5.0,)).high == 1.25


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ((), (1.0,), "no samples"),
        ((0.0,), (1.0,), "not a positive number"),
        ((1.0,), (math.nan,), "not a positive number"),
        ((1.0,), (math.inf,), "not a positive number"),
        ((1.0, 2.0), (1.0, 1.0), f"2 pairs that vary are too few: {FEWEST} are needed"),
    ],
)
def test_what_cannot_be_compared_says_why(old: tuple[float, ...], new: tuple[float, ...], why: str) -> None:
    result = ratio(old, new)
    assert not any((result.judged, result.grew, result.shrank))
    assert why in result.summary


def test_samples_beside_themselves_are_equal_whatever_they_are() -> None:
    for samples in ((0.0,), (math.nan, 1.0), (1.0, 2.0)):
        assert ratio(samples, samples).summary == "ratio 1, without any spread"


def test_what_one_side_has_more_of_is_left_out() -> None:
    assert ratio((1.0, 1.0, 1.0), (2.0,)).pairs == 1
    assert ratio(TIMES[0], np.append(TIMES[1], 100.0)).high == ratio(TIMES[0], TIMES[1]).high


@pytest.mark.parametrize("new", [(1.0,), (1.0, 0.5) * FEWEST])
def test_a_ratio_beyond_the_largest_number_is_infinite(new: tuple[float, ...]) -> None:
    with np.errstate(all="raise"):
        beyond = ratio((5e-324,) * len(new), new)
    assert beyond.judged
    assert beyond.grew
    assert beyond.high == math.inf
