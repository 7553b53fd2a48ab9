"""Times are taken in turns, in an order that varies, while no other worker's test runs, and nobody waits for ever."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import time
from collections import Counter
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
import pytest

from conformance.timing import costs
from conformance.timing.costs import WARM_UP, time_interleaved
from frameworks.base import measure_elapsed
from tests.support.suite_runs import hang_limit

locks = pytest.mark.skipif(costs.fcntl is None, reason="POSIX locks only")
PROCESSES = multiprocessing.get_context("spawn")
TESTS = 12


def worker(folder: Path, name: str, queue: Queue[tuple[str, str, float, float]]) -> None:
    """Tests of 5 ms each, in every third of which 20 ms of times are taken by all workers but c."""
    costs.join(folder)
    for number in range(TESTS):
        with costs.share_machine():
            begin = time.monotonic()
            time.sleep(0.005)
            middle = time.monotonic()
            queue.put((name, "test", begin, middle))
            if name != "c" and number % 3 == 0:
                with costs.alone():
                    begin = time.monotonic()
                    time.sleep(0.02)
                    queue.put((name, "alone", begin, time.monotonic()))


@locks
def test_nobody_tests_while_another_takes_times(tmp_path: Path) -> None:
    queue: Queue[tuple[str, str, float, float]] = PROCESSES.Queue()
    workers = [PROCESSES.Process(target=worker, args=(tmp_path, name, queue)) for name in "abc"]
    for one in workers:
        one.start()
    entries = [queue.get(timeout=hang_limit()) for _ in range(3 * TESTS + 2 * TESTS // 3)]
    for one in workers:
        one.join(hang_limit())
        assert one.exitcode == 0
    for name, what, begin, end in entries:
        if what == "alone":
            beside = [(n, b, e) for n, _, b, e in entries if n != name and b < end and e > begin]
            assert beside == []


@locks
def test_a_worker_that_was_killed_keeps_nobody_waiting(tmp_path: Path) -> None:
    ready = PROCESSES.Event()
    holder = PROCESSES.Process(target=holding, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(hang_limit())
    holder.kill()
    company_of_one = costs.Workers(tmp_path)
    with company_of_one.share_machine(), company_of_one.alone():
        pass
    holder.join(hang_limit())


def holding(folder: Path, ready: multiprocessing.synchronize.Event) -> None:
    """A test that does not end."""
    costs.join(folder)
    with costs.share_machine(), costs.alone():
        ready.set()
        time.sleep(3600.0)


@locks
def test_a_run_in_one_process_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_joined", [])
    with costs.share_machine(), costs.alone():
        pass


def test_each_round_runs_every_work_once_in_an_order_that_varies() -> None:
    called: list[str] = []
    names = ("plain", "twin", "technique")
    works = {name: partial(called.append, name) for name in names}
    times = time_interleaved(works, 40, np.random.default_rng(0), lambda work: work() or len(called))
    rounds = [tuple(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert len(rounds) == WARM_UP + 40
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert len(Counter(rounds)) == 6
    assert {name: len(result) for name, result in times.items()} == dict.fromkeys(names, 40)
    assert sorted(at for result in times.values() for at in result) == [*range(3 * WARM_UP + 1, len(called) + 1)]


def test_a_time_is_that_of_its_work_in_nanoseconds() -> None:
    now = [0]

    def work(spent: int) -> None:
        now[0] += spent

    works = {"slow": partial(work, 10_000_000), "quick": partial(work, 7)}
    times = time_interleaved(works, 3, np.random.default_rng(0), partial(measure_elapsed, clock=lambda: now[0]))
    assert times == {"slow": [10_000_000] * 3, "quick": [7] * 3}


def test_a_work_that_fails_ends_the_timing() -> None:
    with pytest.raises(ZeroDivisionError):
        time_interleaved({"work": lambda: 1 / 0}, 1, np.random.default_rng(0))
