"""Workers with few memory mappings left are replaced, and no test is lost."""

import mmap
from pathlib import Path

import pytest

from conformance.runner import workers
from results.record.model import Outcome
from results.record.reading import load
from tests.support.suite_runs import WORKERS, checkout, judge, outcomes

TESTS = 11
SUITE = f"""
import os

import pytest

from conformance.checks.api import Subject, Verdict, clause
from conformance.runner import workers

RAN = []
workers.mappings = lambda: 1_000_000_000 if len(RAN) >= 3 else 0


@clause("scaling.automaton")
@pytest.mark.parametrize("place", range({TESTS}))
def test_step(subject: Subject, verdict: Verdict, place: int) -> None:
    RAN.append(place)
    verdict.observe("process", os.getpid())
"""


@pytest.mark.parametrize(("count", "dist"), [(2, "worksteal"), pytest.param(1, "load", marks=pytest.mark.slow)])
def test_no_test_is_lost(tmp_path: Path, count: int, dist: str) -> None:
    root = checkout(tmp_path, filling=SUITE)
    record = root / "run.json"
    words = (*WORKERS, f"-n{count}", "--max-worker-restart=99", f"--dist={dist}", f"--record={record}")
    ended = judge(*words, root=root)
    assert ended.status == 0, ended.lines[-20:]
    written = load(record)
    assert outcomes(written, "scaling.automaton") == [Outcome.PASS] * TESTS
    processes = [one.value for one in written.observations]
    most = max(processes.count(each) for each in processes)
    assert most == workers.EVERY - 1, "none ran more than fill it"
    assert any("nears the limit of memory mappings" in line for line in ended.lines)


def test_a_run_that_cannot_hand_tests_on_replaces_no_worker(tmp_path: Path) -> None:
    root = checkout(tmp_path, filling=SUITE)
    record = root / "run.json"
    ended = judge(*WORKERS, "-n1", "--dist=loadscope", f"--record={record}", root=root)
    assert ended.status == 0, ended.lines[-20:]
    assert len({one.value for one in load(record).observations}) == 1


def test_mappings_are_counted() -> None:
    before, maps = workers.mappings(), []
    for place in range(50):  # neighbours of one kind would be one mapping
        access = mmap.PROT_READ if place % 2 else mmap.PROT_READ | mmap.PROT_WRITE
        maps.append(mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=access))
    if Path("/proc/self/maps").exists():
        assert workers.mappings() >= before + 40
        assert workers.most_mappings() > before
    else:
        assert workers.mappings() == 0
    for each in maps:
        each.close()
