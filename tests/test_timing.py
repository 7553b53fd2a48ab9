"""Works that are timed side by side take turns, in an order that varies, and what warms up is not timed."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

import numpy as np
import pytest

from conformance.measuring.interleaved import WARM_UP, interleaved


def test_each_round_runs_every_work_once_in_an_order_that_varies() -> None:
    called: list[str] = []
    names = ("plain", "twin", "technique")
    times = interleaved({name: partial(called.append, name) for name in names}, 40, np.random.default_rng(0))
    rounds = [tuple(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert len(rounds) == WARM_UP + 40
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert len(Counter(rounds)) == 6
    assert {name: len(found) for name, found in times.items()} == dict.fromkeys(names, 40)


def test_a_time_is_that_of_its_work_in_nanoseconds() -> None:
    times = interleaved({"slow": lambda: time.sleep(0.01), "quick": lambda: None}, 3, np.random.default_rng(0))
    assert min(times["slow"]) >= 10_000_000
    assert np.median(times["quick"]) < 5_000_000


def test_warming_up_is_not_timed() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(0)
        if len(calls) <= WARM_UP:
            time.sleep(0.02)

    times = interleaved({"work": work}, 5, np.random.default_rng(0))
    assert np.median(times["work"]) < 10_000_000


def test_a_framework_may_tell_the_times() -> None:
    calls: list[int] = []
    told = interleaved(
        {"work": lambda: calls.append(0)}, 3, np.random.default_rng(0), lambda work: work() or len(calls)
    )
    assert told == {"work": [4, 5, 6]}


def test_a_work_that_fails_ends_the_timing() -> None:
    with pytest.raises(ZeroDivisionError):
        interleaved({"work": lambda: 1 / 0}, 1, np.random.default_rng(0))
