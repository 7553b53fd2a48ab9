"""The ratio of two costs: intervals by hand, what is refused, and how often noise alone is called a change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from results.compare.ratio import CONFIDENCE, FEWEST, SMALLEST, TRIMMED, ratio

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
