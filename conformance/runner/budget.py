"""`--budget`: the tests that are worth most in a given time, and the end of the run when the time is over.

What a test is worth is known from two files: the planted faults that it catches (`kills.json.gz`, measured on the
reference) and the seconds that it took in the baseline of its series. A greedy set cover (each step takes the test with
the most new faults and MUST clauses for its seconds) gives the order. A fault that is caught already counts less, and a
test that catches none a little, so that a defect unlike any planted one meets as many different tests as possible.
"""

from __future__ import annotations

import gzip
import heapq
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.runner.baselines import BASELINES, nearest
from conformance.spec.clauses import Level, load_clauses
from conformance.test_ids.inventory import code_of, id_of
from frameworks.contract import Framework
from results.record.reading import load

KILLS = Path(__file__).with_name("kills.json.gz")
UNKNOWN_S = 1.0
"""Assumed duration of a test that no baseline has."""
OVERHEAD_S = 0.02
"""Time that pytest adds to each test."""
CLAUSE_WEIGHT = 60.0
"""How many faults the first test of a MUST clause is worth."""
AGAIN = 0.5
"""What a fault is worth to one more test that catches it, compared with the test before."""
ANY = 0.1
"""How many faults a test is worth in addition, whatever it catches."""
FINISH_S = 4.0
"""Kept free at the end of the budget: for the record, the table and the comparison."""
_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|min|h)?")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DEADLINE = "conformance-deadline"


@dataclass(frozen=True)
class Candidate:
    """A test that may be chosen.

    Attributes:
        seconds: how long it is expected to take.
        faults: the planted faults that it catches.
        must: its clause if that is a MUST, else "".
    """

    test: str
    seconds: float
    faults: frozenset[str] = frozenset()
    must: str = ""


def seconds_of(text: str) -> float:
    """The seconds of a duration such as "60s", "2m" or "90".

    Raises:
        ValueError: it is none, or is zero.
    """
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if seconds <= 0:
        raise ValueError(f"--budget got {text!r}, want a time such as 60s or 5m")
    return seconds


def ordered(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates by what each adds per second to the ones before it (a greedy cover, lazily evaluated).

    A fault counts 1 for the first test that catches it and `AGAIN` times as much for each further one; the first test
    of a MUST clause counts `CLAUSE_WEIGHT`, and every test `ANY`, whatever it is known to catch.
    """
    caught: Counter[str] = Counter()
    tried: set[str] = set()

    def worth(each: Candidate) -> float:
        fresh = sum(AGAIN ** caught[fault] for fault in each.faults)
        return (ANY + fresh + CLAUSE_WEIGHT * bool(each.must and each.must not in tried)) / (each.seconds + OVERHEAD_S)

    heap = [(-worth(each), each.test, each) for each in candidates]
    heapq.heapify(heap)
    order: list[Candidate] = []
    while heap:
        _, test, best = heapq.heappop(heap)
        value = worth(best)
        if heap and value < -heap[0][0]:
            heapq.heappush(heap, (-value, test, best))
            continue
        order.append(best)
        caught.update(best.faults)
        tried.add(best.must)
    return order


@cache
def kills() -> Mapping[str, frozenset[str]]:
    """The planted faults that each test of the reference catches, by test; also by test function, of any of its cases.

    Made by `python -m tools faults --matrix`.
    """
    stored = json.loads(gzip.decompress(KILLS.read_bytes()))
    result: dict[str, set[str]] = {}
    for fault, tests in stored.items():
        for test in tests:
            for name in (test, test.partition("[")[0]):
                result.setdefault(name, set()).add(fault)
    return {name: frozenset(faults) for name, faults in result.items()}


def planted_faults(tests: Iterable[str] | None = None) -> frozenset[str]:
    """The planted faults of the reference that some tests catch, or their cases there; all of them by default."""
    named = kills()
    chosen = named if tests is None else (test if test in named else test.partition("[")[0] for test in tests)
    return frozenset[str]().union(*(named.get(test, ()) for test in chosen))


def durations(name: str, mode: str, device: str, folder: Path = BASELINES) -> dict[str, float]:
    """Seconds of each test in the nearest baseline of a framework; also of each function, the median of its cases.

    Raises:
        RecordError: a baseline cannot be read.
    """
    path = nearest(name, mode, device, folder)
    seconds = {} if path is None else {verdict.test: verdict.duration_s for verdict in load(path).verdicts}
    cases: dict[str, list[float]] = {}
    for test, taken in seconds.items():
        cases.setdefault(test.partition("[")[0], []).append(taken)
    return {**{function: statistics.median(each) for function, each in cases.items()}, **seconds}


def candidates(tests: Iterable[str], took: Mapping[str, float], alone: frozenset[str]) -> list[Candidate]:
    """What is known of some tests.

    Args:
        took: seconds by test and by function.
        alone: clauses whose tests stop all other workers.
    """
    clauses = load_clauses()

    def known(test: str) -> Candidate:
        function = test.partition("[")[0]
        clause = clauses.get(test.partition("/")[0])
        seconds = took.get(test, took.get(function, UNKNOWN_S)) * (2 if clause and clause.id in alone else 1)
        must = clause.id if clause and clause.level is Level.MUST else ""
        return Candidate(test, seconds, planted_faults([test]), must)

    return [known(test) for test in tests]


class Budget:
    """Plugin of every process of a run with a budget: it chooses the tests, and starts none that would end too late.

    Args:
        seconds: wall time of the run, from this moment on.
        alone: clauses whose tests stop all other workers.
    """

    def __init__(self, config: pytest.Config, framework: Framework, seconds: float, alone: frozenset[str]) -> None:
        given = getattr(config, "workerinput", {})
        self._deadline = float(given.get(_DEADLINE, time.time() + max(seconds - FINISH_S, seconds / 2)))
        self._workers = int(given.get("workercount", 1))
        self._seconds, self._alone, self._framework = seconds, alone, framework
        self._expected: dict[str, float] = {}
        self._spent = self._planned = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Passes the deadline to a worker."""
        node.workerinput[_DEADLINE] = self._deadline

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keeps the tests that fit, in the order of their worth; each worker begins with the best."""
        nodes = {id_of(item.nodeid): item for item in items if code_of(item.nodeid) is not None}
        took = durations(self._framework.name, self._framework.mode, self._framework.device)
        chosen: list[Candidate] = []
        time_left = self._seconds * self._workers
        for each in ordered(candidates(nodes, took, self._alone)):
            if each.seconds + OVERHEAD_S <= time_left:
                chosen.append(each)
                time_left -= each.seconds + OVERHEAD_S
        self._expected = {nodes[each.test].nodeid: each.seconds for each in chosen}
        alternating = [each for worker in range(self._workers) for each in chosen[worker :: self._workers]]
        selection = [nodes[each.test] for each in alternating]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._expected])
        items[:] = selection

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Leaves a test out that would not end in time, going by how this machine compares with the recorded one."""
        if item.nodeid not in self._expected:
            return None
        expected = self._expected[item.nodeid] + OVERHEAD_S
        slower = max(1.0, self._spent / self._planned) if self._planned > 1.0 else 1.0
        if time.time() + expected * slower > self._deadline:
            item.session._setupstate.teardown_exact(nextitem)  # of what the test before left for this one
            return True
        self._planned += expected
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds up what tests took."""
        self._spent += report.duration
