"""In which order workers run the tests, and which of them runs which."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

from conformance.runner.selection import durations
from conformance.test_ids.inventory import code_of, id_of
from frameworks.contract import Framework

T = TypeVar("T")

LONG_S = 2.0
"""Tests that took longer in the baseline begin before all others, so that none of them is left for the end."""

APART = frozenset({"test_laws.py", "test_resume.py"})
"""Suites that one worker runs. They take half of the time in Paddle's static graph, the one mode of this kind."""


class FixedShares(LoadScopeScheduling):  # type: ignore[misc]
    """Two shares of the tests, each for one worker and in its order; a single worker runs all of them in their order.

    What a framework keeps of a test can then reach only those that came after it in every run before.
    """

    def _split_scope(self, nodeid: str) -> str:
        apart = PurePosixPath(nodeid.partition("::")[0]).name in APART
        return "apart" if apart and self.numnodes > 1 else "others"


def expected_seconds(framework: Framework, items: Sequence[pytest.Item]) -> dict[pytest.Item, float]:
    """Seconds that each test of the suites took in the baseline, 0 where none is known."""
    took = durations(framework.name, framework.mode, framework.device)
    names = {item: id_of(item.nodeid) for item in items if code_of(item.nodeid)}
    return {item: took.get(name, took.get(name.partition("[")[0], 0.0)) for item, name in names.items()}


def split_by_worker(
    tests: Sequence[T], workers: int, alone: Collection[T], last: Collection[T], seconds: Mapping[T, float]
) -> list[T]:
    """The tests in an order of which each worker of pytest-xdist's worksteal gets an equal and contiguous part.

    Every part begins with its share of the tests that have the machine to themselves: where all workers run such tests,
    none of them waits for a long one to end. Long tests follow, the longest first, then the others in their order.

    Args:
        alone: tests that stop all other workers.
        last: tests that nothing may follow.
        seconds: what is known of how long tests take.
    """
    timed = [test for test in tests if test in alone and test not in last]
    left = [test for test in tests if test not in alone and test not in last]
    left += [test for test in tests if test in last]
    order: list[T] = []
    for worker in range(workers):
        own = timed[worker::workers]
        size = max(0, (len(tests) - len(order)) // (workers - worker) - len(own))
        part, left = left[:size], left[size:]
        long = [test for test in part if test not in last and seconds.get(test, 0.0) > LONG_S]
        order += [*own, *sorted(long, key=lambda test: -seconds[test]), *(test for test in part if test not in long)]
    return [*order, *left]
