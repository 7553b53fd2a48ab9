"""Works that are timed side by side take turns, in an order that varies, and what warms up is not timed."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

from conformance.timing.interleaved import WARM_UP, interleaved
from frameworks.base import elapsed


def test_each_round_runs_every_work_once_in_an_order_that_varies() -> None:
    called: list[str] = []
    names = ("plain", "twin", "technique")
    times = interleaved({name: partial(called.append, name) for name in names}, 40, np.random.default_rng(0))
    rounds = [tuple(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert len(rounds) == WARM_UP + 40
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert len(Counter(rounds)) == 6
    assert {name: len(result) for name, result in times.items()} == dict.fromkeys(names, 40)


def test_a_time_is_that_of_its_work_in_nanoseconds() -> None:
    now = [0]

    def work(spent: int) -> None:
        now[0] += spent

    works = {"slow": partial(work, 10_000_000), "quick": partial(work, 7)}
    times = interleaved(works, 3, np.random.default_rng(0), partial(elapsed, clock=lambda: now[0]))
    assert times == {"slow": [10_000_000] * 3, "quick": [7] * 3}


def test_a_framework_may_tell_the_times() -> None:
    calls: list[int] = []
    times = interleaved(
        {"work": lambda: calls.append(0)}, 3, np.random.default_rng(0), lambda work: work() or len(calls)
    )
    assert times == {"work": [4, 5, 6]}


def test_a_work_that_fails_ends_the_timing() -> None:
    with pytest.raises(ZeroDivisionError):
        interleaved({"work": lambda: 1 / 0}, 1, np.random.default_rng(0))
