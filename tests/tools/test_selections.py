"""The fixed selections of tests: how they are chosen, and whether the committed ones keep their promises."""

import pytest

from conformance.runner.baselines import BASELINES
from conformance.runner.selection import CORE, FOLDER, QUICK, Selection, read
from results.record.folders import listed
from results.record.reading import Record, load
from tools.faults import kills
from tools.selections import (
    CHANGE,
    CORE_S,
    QUICK_S,
    Candidate,
    candidates_of,
    cases,
    caught_by,
    changes_of,
    core_of,
    needed,
    ordered,
    quick_of,
)


def one(test: str, seconds: float, faults: str = "", *, must: bool = False, judged: bool = True) -> Candidate:
    return Candidate(test, seconds, frozenset(faults), test.partition("/")[0] if must else "", judged)


def test_order_is_by_what_is_caught_per_second() -> None:
    slow, quick, other = one("a.a/slow", 10, "abcd"), one("a.a/quick", 1, "abc"), one("a.a/other", 1, "d")
    assert ordered([slow, quick, other]) == [quick, other, slow], "what others catch already counts less"
    first, second = one("s.a/first", 5, must=True), one("s.a/second", 1, must=True)
    assert ordered([first, second, quick]) == [second, quick, first], "a clause is tried by its quickest test"


def test_needed_tests_cover_every_clause_and_every_fault() -> None:
    tests = [
        one("a.a/quick", 1, must=True),
        one("a.a/slow", 9, "xy", must=True),
        one("a.b/refused", 1, judged=False),
        one("a.b/judged", 5, must=True),
        one("a.c/y", 2, "y"),
    ]
    assert {test.test for test in needed(tests)} == {"a.a/quick", "a.b/judged", "a.c/y", "a.a/slow"}


def test_core_fills_its_time_and_quick_has_judged_tests_alone() -> None:
    tests = [one(f"a.a/t[{i}]", 1) for i in range(9)] + [one("a.a/refused", 0.1, judged=False)]
    assert len(core_of(tests, 5)) == 5
    assert len(quick_of(tests, 5)) == 5
    assert "a.a/refused" not in quick_of(tests, 50)


def test_cases_are_by_function() -> None:
    assert cases(["a.b/t[1]", "a.b/t[2-x]", "a.b/u"]) == {"a.b/t": ["1", "2-x"], "a.b/u": [""]}


@pytest.fixture(scope="module", params=sorted(name for name in CORE_S if not name.endswith("-loop")))
def series(request: pytest.FixtureRequest) -> tuple[Record, Selection]:
    paths = [
        path for path in listed(BASELINES) if path.name.endswith(f"-cpu-{request.param.partition('-')[2]}.json.gz")
    ]
    (path,) = (path for path in paths if path.name.startswith(f"{request.param.partition('-')[0]}-"))
    return load(path), read(FOLDER / f"{request.param}.json")


def test_core_tries_every_judged_must_clause_and_catches_the_faults(series: tuple[Record, Selection]) -> None:
    record, selection = series
    name = record.series.framework
    every = candidates_of(record, caught_by(name, kills.read()), changes_of(name, record.series.mode))
    core = [test for test in every if selection.has(test.test, CORE)]
    assert {test.must for test in every if test.judged} == {test.must for test in core if test.judged}
    faults, caught = ({fault for test in tests for fault in test.faults} for tests in (every, core))
    assert len(caught) >= 0.99 * len(faults)
    assert {fault for fault in faults - caught if fault.startswith(CHANGE)} == set()


def test_quick_is_a_minute_of_judged_tests(series: tuple[Record, Selection]) -> None:
    record, selection = series
    quick = [test for test in candidates_of(record, {}) if selection.has(test.test, QUICK)]
    assert quick
    assert all(test.judged for test in quick)
    assert sum(test.seconds for test in quick) <= QUICK_S * 1.05


def test_kills_are_of_tests_that_exist() -> None:
    recorded = {verdict.test for verdict in load(next(BASELINES.glob("reference-*-emulated.json.gz"))).verdicts}
    named = {test for fault, tests in kills.read().items() if fault.startswith("reference.") for test in tests}
    assert len(named) > 500
    assert named - recorded == set()
