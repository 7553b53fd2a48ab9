"""The ratio of two costs: intervals by hand, what is refused, and how often noise alone is called a change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.calibration.two_runs import PairedCost, between
from results.compare.ratio import CONFIDENCE, FEWEST, SMALLEST, TRIMMED, ratio

TIMES = 1.0 + np.random.default_rng(3).gamma(2.0, 0.02, (4, FEWEST))


def test_the_interval_of_pairs_is_students_of_the_trimmed_mean() -> None:
    logs = np.sort(np.log(TIMES[1] / TIMES[0]))
    cut = int(TRIMMED * FEWEST)
    winsorized = np.clip(logs, logs[cut], logs[-cut - 1])
    error = winsorized.std(ddof=1) / ((1.0 - 2.0 * TRIMMED) * math.sqrt(FEWEST))
    reach = stats.t.ppf(0.5 + CONFIDENCE / 2.0, FEWEST - 2 * cut - 1) * error
    found = ratio(tuple(TIMES[0]), tuple(TIMES[1]))
    middle = logs[cut:-cut].mean()
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((middle - reach, middle + reach))


def test_the_interval_between_runs_is_of_the_multiples_of_the_controls() -> None:
    old, new = PairedCost(TIMES[0], TIMES[1]), PairedCost(1.2 * TIMES[2], 1.2 * TIMES[3])
    found = between(old, new)
    logs = np.log(TIMES[0] / TIMES[1]), np.log(TIMES[2] / TIMES[3])
    middle = stats.trim_mean(logs[1], TRIMMED) - stats.trim_mean(logs[0], TRIMMED)
    assert math.sqrt(found.low * found.high) == pytest.approx(math.exp(middle))
    alone = ratio(TIMES[1], TIMES[0])
    assert math.log(found.high / found.low) > math.log(alone.high / alone.low)


def test_a_few_disturbed_pairs_hardly_move_it() -> None:
    slow = TIMES[1].copy()
    slow[: FEWEST // 8] *= 10.0
    quiet, disturbed = ratio(TIMES[0], TIMES[1]), ratio(TIMES[0], slow)
    assert disturbed.low == pytest.approx(quiet.low, abs=0.01)
    assert not disturbed.grew


@pytest.mark.parametrize("runs", ["one", "two"])
def test_noise_alone_is_seldom_called_a_change_and_five_percent_mostly_is(runs: str) -> None:
    rng = np.random.default_rng(4)
    alarms = found = 0
    for _ in range(300):
        sides = np.exp(rng.normal(0.0, 0.025, (4, FEWEST)))
        for slower in (1.0, 1.05):
            result = (
                ratio(sides[0], slower * sides[1])
                if runs == "one"
                else between(PairedCost(sides[0], sides[1]), PairedCost(slower * sides[2], sides[3]))
            )
            alarms += slower == 1.0 and (result.grew or result.shrank)
            found += slower != 1.0 and result.grew
    assert alarms <= 3
    assert found >= 285


def test_a_change_within_what_is_negligible_is_none() -> None:
    slower = (1.0 + 0.9 * SMALLEST) * TIMES[0] * np.tile([0.9999, 1.0001], FEWEST // 2)
    found = ratio(TIMES[0], slower)
    assert found.low > 1.0
    assert not found.grew


@pytest.mark.filterwarnings("error")
def test_what_does_not_vary_is_exact() -> None:
    assert ratio((4.0,), (5.0,)).low == ratio((4.0,), (5.0,)).high == 1.25
    assert between(PairedCost((4.0,)), PairedCost((5.0, 5.0))).grew
    halves = PairedCost((0.5, 1.0, 1.5) * FEWEST, (1.0, 2.0, 3.0) * FEWEST)
    assert between(halves, PairedCost(2.0 * TIMES[0], 2.0 * TIMES[0])).told == "ratio 2, without any spread"


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
    found = ratio(old, new)
    assert not any((found.judged, found.grew, found.shrank))
    assert why in found.told


def test_samples_beside_themselves_are_equal_whatever_they_are() -> None:
    for samples in ((0.0,), (math.nan, 1.0), (1.0, 2.0)):
        assert ratio(samples, samples).told == "ratio 1, without any spread"
        assert between(PairedCost(samples), PairedCost(samples)).judged


@pytest.mark.parametrize(("times", "judged"), [(1.2, True), (1.3, False), (1 / 1.2, True), (1 / 1.3, False)])
def test_controls_that_took_other_times_are_not_alike(times: float, judged: bool) -> None:
    found = between(PairedCost(TIMES[0], TIMES[1]), PairedCost(times * TIMES[2], times * TIMES[1]))
    assert found.judged is judged
    if not judged:
        assert found.told.startswith(f"the control took {times:.3g} times as long: the machine was busy")
        assert not found.grew


def test_times_of_two_runs_need_a_control_on_both_sides() -> None:
    bare, held = PairedCost(TIMES[0]), PairedCost(TIMES[1], TIMES[2])
    for old, new in ((bare, held), (held, bare), (bare, PairedCost(TIMES[3]))):
        assert "not paired with a control" in between(old, new).told
    assert between(held, PairedCost(TIMES[3], TIMES[2] * 0.0)).told == "a sample is not a positive number"


def test_what_one_side_has_more_of_is_left_out() -> None:
    assert ratio((1.0, 1.0, 1.0), (2.0,)).pairs == 1
    more = np.append(TIMES[1], 100.0)
    assert ratio(TIMES[0], more).high == ratio(TIMES[0], TIMES[1]).high
    assert between(PairedCost(TIMES[0], more), PairedCost(TIMES[2], TIMES[3])).pairs == FEWEST


@pytest.mark.parametrize("new", [(1.0,), (1.0, 0.5) * FEWEST])
def test_a_ratio_beyond_the_largest_number_is_infinite(new: tuple[float, ...]) -> None:
    with np.errstate(all="raise"):
        beyond = ratio((5e-324,) * len(new), new)
    assert beyond.judged
    assert beyond.grew
    assert beyond.high == math.inf
