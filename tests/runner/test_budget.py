"""`--budget`: which tests are chosen, and that none starts that would end too late."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.runner import budget
from conformance.runner.baselines import BASELINES
from conformance.runner.budget import KILLS, Budget, Candidate, candidates, durations, kills, ordered, seconds_of
from conformance.runner.jobs import parted
from conformance.spec.clauses import Level, load_clauses
from frameworks.reference import ReferenceFramework
from results.record.reading import load
from tests.support.suite_runs import WORKERS, by_case, checkout, judge

SUITE = """
import pytest
from conformance.checks.api import *

@clause("scaling.stays-finite")
@pytest.mark.parametrize("value", range(3))
def test_holds(subject: Subject, verdict: Verdict, value: int) -> None:
    verdict.equal(value, value, "the value")
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"), first=SUITE)


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("90", 90), ("2m", 120), ("1.5min", 90), ("1h", 3600)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-3s", "soon", "60 s s", "1e3", "infs"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want a time such as 60s"):
        seconds_of(text)


def test_the_modes_share_what_the_command_gets() -> None:
    assert parted(["-k", "scaling", "--budget", "2m", "-x"]) == (120, ["-k", "scaling", "-x"])
    assert parted(["--budget=5s", "--budget=7s"]) == (7, [])
    assert parted(["-k", "budget"]) == (0, ["-k", "budget"])


def test_the_order_is_by_what_is_caught_per_second() -> None:
    def one(test: str, seconds: float, faults: str = "", must: str = "") -> Candidate:
        return Candidate(test, seconds, frozenset(faults), must)

    slow, quick, other = one("slow", 10, "abcd"), one("quick", 1, "abc"), one("other", 1, "d")
    assert ordered([slow, quick, other]) == [quick, other, slow], "what others catch already counts less"
    first, second = one("first", 5, must="s.a"), one("second", 1, must="s.a")
    assert ordered([first, second, quick]) == [second, quick, first], "a clause is tried by its quickest test"
    again = one("again", 1, "abc")
    assert ordered([one("none", 0.9), again, quick, other]) == [again, quick, other, one("none", 0.9)]
    assert ordered([]) == []


def test_every_must_clause_is_tried_early() -> None:
    took = durations("torch", "eager", "cpu")
    tests = [test for test in took if "/test_" in test]
    order = ordered(candidates(tests, took, frozenset()))
    must = {each.must for each in order} - {""}
    assert len(order) == len(set(tests))
    recorded = {test.partition("/")[0] for test in tests}
    assert {each for each in recorded if load_clauses()[each].level is Level.MUST} <= must
    seconds, tried = 0.0, set[str]()
    for each in order:
        tried.add(each.must)
        seconds += each.seconds
        if tried > must:
            break
    assert seconds < 60


def test_the_kills_are_of_tests_that_exist() -> None:
    recorded = {verdict.test for verdict in load(next(BASELINES.glob("reference-*-emulated.json.gz"))).verdicts}
    named = {test for tests in json.loads(gzip.decompress(KILLS.read_bytes())).values() for test in tests}
    assert len(named) > 500
    assert named - recorded == set()
    assert {test for test in kills() if "[" in test} <= named


def test_the_nearest_baseline_gives_the_seconds(tmp_path: Path) -> None:
    forced = durations("paddle", "dygraph-forced-scaler", "cpu")
    assert forced != durations("paddle", "dygraph", "cpu") != durations("paddle", "nothing", "cpu")
    assert durations("of-somebody-else", "eager", "cpu") == durations("reference", "emulated", "cpu")
    assert durations("torch", "eager", "cpu", tmp_path) == {}


def started(seconds: float, monkeypatch: pytest.MonkeyPatch, clock: list[float], took: dict[str, float]) -> Budget:
    monkeypatch.setattr(budget, "time", SimpleNamespace(time=lambda: clock[0]))
    plugin = Budget(SimpleNamespace(), ReferenceFramework(), seconds, frozenset())  # type: ignore[arg-type]
    plugin._expected = took
    return plugin


def test_no_test_starts_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    plugin = started(20 + budget.FINISH_S, monkeypatch, clock, {"quick": 1.0, "slow": 10.0})

    torn_down: list[Any] = []
    session = SimpleNamespace(_setupstate=SimpleNamespace(teardown_exact=torn_down.append))
    after: Any = SimpleNamespace(nodeid="after")

    def begins(node: str) -> bool:
        item: Any = SimpleNamespace(nodeid=node, session=session)
        return plugin.pytest_runtest_protocol(item, after) is None

    assert begins("slow")
    plugin.pytest_runtest_logreport(SimpleNamespace(duration=15.0))  # type: ignore[arg-type]
    clock[0] = 15.0
    assert not begins("slow")
    assert torn_down == [after], "what the test before left for this one is torn down"
    assert begins("quick")
    clock[0] = 18.9
    assert not begins("quick"), "this machine takes 1.5 times as long as the recorded one"
    assert begins("of another plugin")


@pytest.mark.parametrize("workers", [(), (*WORKERS, "-n2")], ids=["one process", "workers"])
def test_a_record_says_what_the_budget_was(workers: tuple[str, ...], copied: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    ended = judge("--budget=1h", f"--record={path}", *workers, root=copied)
    record = load(path)
    assert (ended.status, record.status, record.selection) == (0, "partial", "--budget=1h"), ended.lines
    must = sum(clause.level is Level.MUST for clause in load_clauses().values())
    assert record.notes[0].startswith(f"budget of 1h: 3 of 3 chosen tests, 1 of {must} MUST clauses, 0 of ")
    assert f"partial: {record.notes[0]}" in ended.lines
    assert len(by_case(record)) == 3


def test_the_default_record_lies_beside_that_of_all_tests(copied: Path) -> None:
    ended = judge("--budget=1h", root=copied)
    (path,) = (copied / "results" / "records").glob("*")
    assert (ended.status, path.name) == (0, "reference-1-cpu-emulated.budget.json"), ended.lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget=soon"], "--budget got 'soon', want a time such as 60s or 5m"),
        (["--budget=0.01s"], "no test ended within the budget of 0.01s; allow more time"),
    ],
)
def test_a_budget_in_which_nothing_fits_is_refused(words: list[str], message: str, copied: Path) -> None:
    ended = judge(*words, root=copied)
    assert ended.status == 2
    assert message in " ".join(ended.lines)
