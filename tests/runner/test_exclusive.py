"""Times are taken while no other worker's test runs, and nobody waits for ever."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import time
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from conformance.timing import exclusive
from tests.support.suite_runs import hang_limit

pytestmark = pytest.mark.skipif(exclusive.fcntl is None, reason="POSIX locks only")
PROCESSES = multiprocessing.get_context("spawn")
TESTS = 12


def worker(folder: Path, name: str, timing: bool, queue: Queue[tuple[str, str, float, float]]) -> None:
    """Tests of 5 ms each, in every third of which 20 ms of times are taken if this worker does such things."""
    exclusive.join(folder)
    for number in range(TESTS):
        with exclusive.entered():
            begin = time.monotonic()
            time.sleep(0.005)
            middle = time.monotonic()
            queue.put((name, "test", begin, middle))
            if timing and number % 3 == 0:
                with exclusive.alone():
                    begin = time.monotonic()
                    time.sleep(0.02)
                    queue.put((name, "alone", begin, time.monotonic()))


@pytest.mark.parametrize("others_take_times", [False, True])
def test_nobody_tests_while_another_takes_times(others_take_times: bool, tmp_path: Path) -> None:
    queue: Queue[tuple[str, str, float, float]] = PROCESSES.Queue()
    workers = [
        PROCESSES.Process(target=worker, args=(tmp_path, name, timing, queue))
        for name, timing in (("a", True), ("b", others_take_times), ("c", False))
    ]
    for one in workers:
        one.start()
    count = 3 * TESTS + TESTS // 3 * (1 + others_take_times)
    entries = [queue.get(timeout=hang_limit()) for _ in range(count)]
    for one in workers:
        one.join(hang_limit())
        assert one.exitcode == 0
    for name, what, begin, end in entries:
        if what == "alone":
            beside = [(n, b, e) for n, _, b, e in entries if n != name and b < end and e > begin]
            assert beside == []


def test_a_worker_that_was_killed_keeps_nobody_waiting(tmp_path: Path) -> None:
    ready = PROCESSES.Event()
    holder = PROCESSES.Process(target=holding, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(hang_limit())
    holder.kill()
    company_of_one = exclusive.Workers(tmp_path)
    with company_of_one.entered(), company_of_one.alone():
        pass
    holder.join(hang_limit())


def holding(folder: Path, ready: multiprocessing.synchronize.Event) -> None:
    """A test that does not end."""
    exclusive.join(folder)
    with exclusive.entered(), exclusive.alone():
        ready.set()
        time.sleep(3600.0)


def test_a_run_in_one_process_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusive, "_joined", [])
    with exclusive.entered(), exclusive.alone():
        pass
