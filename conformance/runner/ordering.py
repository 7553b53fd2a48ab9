"""The order of the tests, and their split into parts, one for each worker."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

from conformance.runner.selection import durations
from conformance.test_ids import code_of, id_of
from frameworks.contract import Framework

T = TypeVar("T")

LONG_S = 2.0
"""Seconds: tests that took longer in the baseline start first, so that none of them is left for the end."""

APART = frozenset({"test_laws.py", "test_resume.py"})
"""Suites that one of two workers runs in a serial mode. They take half of the time in Paddle's static graph."""


class FixedShares(LoadScopeScheduling):  # type: ignore[misc]
    """Splits the tests into two fixed parts, one for each worker, in a fixed order; a single worker runs all of them.

    State that a framework keeps from a test then affects the same later tests in every run.
    """

    def _split_scope(self, nodeid: str) -> str:
        separate = PurePosixPath(nodeid.partition("::")[0]).name in APART
        return "apart" if separate and self.numnodes > 1 else "others"


def expected_seconds(framework: Framework, items: Sequence[pytest.Item]) -> dict[pytest.Item, float]:
    """Return the seconds that each test of the suites took in the baseline, 0 where they are unknown."""
    took = durations(framework.name, framework.mode, framework.device)
    names = {item: id_of(item.nodeid) for item in items if code_of(item.nodeid)}
    return {item: took.get(name, took.get(name.partition("[")[0], 0.0)) for item, name in names.items()}


def split_by_worker(
    tests: Sequence[T], workers: int, alone: Collection[T], last: Collection[T], seconds: Mapping[T, float]
) -> list[T]:
    """Return the tests in an order that pytest-xdist's worksteal splits into equal, contiguous parts for the workers.

    Every part begins with its share of the tests that stop all other workers: while all workers run such tests, none of
    them waits for a long test to end. Long tests follow, the longest first, then the others in their order.

    Args:
        alone: tests that stop all other workers.
        last: tests that no other test may follow.
        seconds: known durations of tests.
    """
    timed = [test for test in tests if test in alone and test not in last]
    untimed = [test for test in tests if test not in alone and test not in last]
    untimed += [test for test in tests if test in last]
    order: list[T] = []
    for worker in range(workers):
        own = timed[worker::workers]
        size = max(0, (len(tests) - len(order)) // (workers - worker) - len(own))
        part, untimed = untimed[:size], untimed[size:]
        long = [test for test in part if test not in last and seconds.get(test, 0.0) > LONG_S]
        order += [*own, *sorted(long, key=lambda test: -seconds[test]), *(test for test in part if test not in long)]
    return [*order, *untimed]
