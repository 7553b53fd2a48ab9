"""Which worker runs which tests, and in which order."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")

from conformance.runner.collection import FixedShares, split_by_worker

SUITES = "conformance/suites"
TESTS = [
    f"{SUITES}/{name}"
    for name in ("test_accumulation.py::test_a", "test_laws.py::test_b[0]", "test_laws.py::test_b[1]")
] + [f"{SUITES}/{name}" for name in ("test_master.py::test_c", "test_resume.py::test_d", "test_scaling.py::test_e")]


class Node:
    """A worker that notes the numbers of the tests that it is told to run."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.sent += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def shares(workers: int) -> list[list[str]]:
    """What each of so many workers runs, in its order."""
    given: Any = SimpleNamespace(option=SimpleNamespace(tx=["popen"] * workers, loadscopereorder=True))
    given.getvalue = lambda name: getattr(given.option, name)
    scheduler = FixedShares(given)
    nodes: list[Any] = [Node(f"gw{number}") for number in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
    for node in reversed(nodes):
        scheduler.add_node_collection(node, TESTS)
    scheduler.schedule()
    return [[TESTS[number] for number in node.sent] for node in nodes]


def test_two_workers_run_fixed_shares_in_the_order_of_collection() -> None:
    others = [test for test in TESTS if "laws" not in test and "resume" not in test]
    assert sorted(shares(2)) == sorted([others, [test for test in TESTS if test not in others]])


def test_one_worker_runs_all_in_the_order_of_collection() -> None:
    assert shares(1) == [TESTS]


def test_a_third_worker_runs_nothing() -> None:
    assert sorted(map(len, shares(3))) == [0, 3, 3]


def test_each_part_begins_with_tests_that_stop_the_others_and_goes_on_with_long_ones() -> None:
    alone, last, seconds = frozenset({"t1", "t2", "t3"}), frozenset({"z"}), {"c": 3.0, "d": 9.0, "g": 5.0, "z": 9.0}
    parts = ["t1", "t3", "d", "c", "a"], ["t2", "g", "e", "f", "h", "z"]
    assert split_by_worker(["z", "a", "c", "d", "e", "f", "g", "h", "t1", "t2", "t3"], 2, alone, last, seconds) == [
        *parts[0],
        *parts[1],
    ]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 20])
def test_every_test_is_dealt_once(workers: int) -> None:
    tests = [f"t{number}" for number in range(11)]
    for alone in (tests, tests[:5], []):
        order = split_by_worker(tests, workers, frozenset(alone), frozenset(tests[3:5]), {"t9": 4.0})
        assert sorted(order) == sorted(tests)
        assert workers > 1 or set(order[-2:]) == set(tests[3:5])
