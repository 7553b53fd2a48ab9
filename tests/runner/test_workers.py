"""Workers and repetitions: the order of tests, complete records, and verdicts that are repeated."""

import mmap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from conformance.runner import isolation, jobs, retry, selection
from conformance.runner.retry import due, settle
from conformance.runner.selection import Selection
from conformance.test_ids import inventory
from results.record.model import Outcome, TestVerdict
from results.record.reading import Record, load
from results.show.clauses import title
from tests.support.recorded import BASE
from tests.support.suite_runs import WORKERS, conformance, copy_checkout, hang_limit, judge, outcomes, outcomes_by_case

TESTS = 11
SUITE = f"""
from conformance.runner import isolation

RAN = []
isolation.mappings = lambda: 1_000_000_000 if len(RAN) >= 3 else 0


@clause("scaling.automaton")
@pytest.mark.parametrize("place", range({TESTS}))
def test_step(subject: Subject, verdict: Verdict, place: int) -> None:
    RAN.append(place)
    verdict.observe("process", os.getpid())
"""
SUITES = "conformance/suites"
ORDERED = [
    f"{SUITES}/{name}"
    for name in ("test_accumulation.py::test_a", "test_laws.py::test_b[0]", "test_laws.py::test_b[1]")
] + [f"{SUITES}/{name}" for name in ("test_master.py::test_c", "test_resume.py::test_d", "test_scaling.py::test_e")]
FIRST = """
@clause("scaling.automaton")
@pytest.mark.parametrize("value", [1, 2])
def test_holds(subject: Subject, verdict: Verdict, value: int) -> None:
    verdict.equal(value, value, "a value")
"""
SECOND = """
@clause("scaling.stays-finite")
def test_stands(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 1, "a value")


@clause("composition.plain-way")
def test_works_around(subject: Subject, verdict: Verdict, workaround: object) -> None:
    verdict.equal(1, 1, "a value")
"""
ALL = {"test_holds[1]", "test_holds[2]", "test_stands", "every test"}
DROPPING = """
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "[2]" not in item.nodeid]
"""
STOPPING = """
import pytest

def pytest_runtest_logfinish(nodeid):
    if "[1]" in nodeid:
        pytest.exit("", 0)
"""
BROKEN = "raise ZeroDivisionError\n"
SELECTIONS = (
    ["--ignore=conformance/suites/test_second.py"],
    ["--ignore-glob=*second*"],
    ["--deselect=conformance/suites/test_second.py::test_stands"],
    ["-k", "holds"],
    ["conformance/suites/test_first.py"],
    ["conformance/suites/test_first.py::test_holds[1]", "conformance/suites/test_second.py"],
    ["-o", "python_files=test_f*.py"],
)


@pytest.mark.parametrize(("count", "dist"), [(2, "worksteal"), pytest.param(1, "load", marks=pytest.mark.slow)])
def test_run_with_full_workers_replaces_them_and_loses_no_test(tmp_path: Path, count: int, dist: str) -> None:
    root = copy_checkout(tmp_path, filling=SUITE)
    record = root / "run.json"
    arguments = (*WORKERS, f"-n{count}", "--max-worker-restart=99", f"--dist={dist}", f"--record={record}")
    result = judge(*arguments, root=root)
    assert result.status == 0, result.lines[-20:]
    written = load(record)
    assert outcomes(written, "scaling.automaton") == [Outcome.PASS] * TESTS
    processes = [observation.value for observation in written.observations]
    most = max(processes.count(process) for process in processes)
    assert most == isolation.EVERY - 1
    assert any("nears the limit of memory mappings" in line for line in result.lines)


def test_run_by_loadscope_replaces_no_worker(tmp_path: Path) -> None:
    root = copy_checkout(tmp_path, filling=SUITE)
    record = root / "run.json"
    result = judge(*WORKERS, "-n1", "--dist=loadscope", f"--record={record}", root=root)
    assert result.status == 0, result.lines[-20:]
    assert len({observation.value for observation in load(record).observations}) == 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are counted in /proc")
def test_mappings_counts_memory_mappings() -> None:
    before, maps = isolation.mappings(), []
    for index in range(50):  # neighbours of one kind would be one mapping
        access = mmap.PROT_READ if index % 2 else mmap.PROT_READ | mmap.PROT_WRITE
        maps.append(mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=access))
    assert isolation.mappings() >= before + 40
    assert isolation.most_mappings() > before
    for mapping in maps:
        mapping.close()


@pytest.fixture
def ordering() -> Any:
    """The module that orders tests; it imports pytest-xdist."""
    return pytest.importorskip("conformance.runner.ordering")


def plan_shares(ordering: Any, workers: int) -> list[list[str]]:
    """The tests of each worker, in its order."""
    config: Any = SimpleNamespace(option=SimpleNamespace(tx=["popen"] * workers, loadscopereorder=True))
    config.getvalue = lambda name: getattr(config.option, name)
    scheduler = ordering.FixedShares(config)
    nodes = [Mock(shutting_down=False, **{"gateway.id": f"gw{number}"}) for number in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
    for node in reversed(nodes):
        scheduler.add_node_collection(node, ORDERED)
    scheduler.schedule()
    sent = ([number for call in node.send_runtest_some.call_args_list for number in call.args[0]] for node in nodes)
    return [[ORDERED[number] for number in numbers] for numbers in sent]


def test_fixed_shares_of_workers_are_in_the_order_of_collection(ordering: Any) -> None:
    part = [test for test in ORDERED if "laws" not in test and "resume" not in test]
    parts = sorted([part, [test for test in ORDERED if test not in part]])
    assert [sorted(plan_shares(ordering, count)) for count in (1, 2, 3)] == [[ORDERED], parts, [[], *parts]]


def test_split_by_worker_begins_with_timed_and_long_tests(ordering: Any) -> None:
    timed, spoiling = frozenset({"t1", "t2", "t3"}), frozenset({"z"})
    seconds = {"c": 3.0, "d": 9.0, "g": 5.0, "z": 9.0}
    parts = ["t1", "t3", "d", "c", "a"], ["t2", "g", "e", "f", "h", "z"]
    assert ordering.split_by_worker(
        ["z", "a", "c", "d", "e", "f", "g", "h", "t1", "t2", "t3"], 2, timed, spoiling, seconds
    ) == [*parts[0], *parts[1]]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 20])
def test_split_by_worker_has_every_test_once(ordering: Any, workers: int) -> None:
    tests = [f"t{number}" for number in range(11)]
    for timed in (tests, tests[:5], []):
        order = ordering.split_by_worker(tests, workers, frozenset(timed), frozenset(tests[3:5]), {"t9": 4.0})
        assert sorted(order) == sorted(tests)
        assert workers > 1 or set(order[-2:]) == set(tests[3:5])


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_checkout(tmp_path_factory.mktemp("checkout"), first=FIRST, second=SECOND)
    for name, source in (("dropping", DROPPING), ("stopping", STOPPING)):
        (root / f"{name}.py").write_text(source)
    selections, test = root / "conformance" / "runner" / "selections", "scaling.automaton/test_holds"
    for path in selections.glob("*.json"):
        path.unlink()
    selection.write(selections / "reference-emulated.json", Selection({test: ["1"]}, {test: ["2"]}))
    return root


@pytest.fixture
def folder(copied: Path) -> Iterator[Path]:
    """The default folder of records."""
    records = copied / "results" / "records"
    yield records
    for path in records.glob("*"):
        path.unlink()


def only_record(folder: Path) -> Record:
    """The only record in the folder."""
    (path,) = folder.glob("*")
    return load(path)


def test_run_of_all_tests_is_complete(copied: Path, folder: Path) -> None:
    result = judge(root=copied)
    record = only_record(folder)
    assert (result.status, record.status, record.notes) == (0, "complete", ()), result.lines
    assert outcomes_by_case(record).keys() == ALL


@pytest.mark.parametrize("arguments", SELECTIONS, ids=" ".join)
def test_run_of_a_selection_is_partial(arguments: list[str], copied: Path, tmp_path: Path) -> None:
    result = judge(*arguments, f"--record={tmp_path / 'run.json'}", root=copied)
    (path,) = tmp_path.glob("*.json")
    record = load(path)
    assert (result.status, record.status) == (0, "partial"), result.lines
    assert record.notes or "::" in record.selection
    assert "every test" not in outcomes_by_case(record)


@pytest.mark.parametrize("arguments", SELECTIONS[1:3], ids=" ".join)
def test_run_of_a_selection_writes_no_default_record(arguments: list[str], copied: Path, folder: Path) -> None:
    assert judge(*arguments, root=copied).status == 0
    assert not list(folder.glob("*"))


@pytest.mark.parametrize("workers", [(), (*WORKERS, "-n2")], ids=["one process", "workers"])
def test_run_of_core_and_quick_writes_two_records(workers: tuple[str, ...], copied: Path, folder: Path) -> None:
    for name in ("core", "quick"):
        result = judge(f"--tests={name}", *workers, root=copied)
        assert result.status == 0, result.lines
    paths = {path.name: path for path in folder.glob("*")}
    assert paths.keys() == {"reference-1-cpu-emulated.json", "reference-1-cpu-emulated.quick.json"}
    core, quick = load(paths["reference-1-cpu-emulated.json"]), load(paths["reference-1-cpu-emulated.quick.json"])
    assert outcomes_by_case(core).keys() == {"every test", "test_holds[1]", "test_stands"}
    assert outcomes_by_case(quick).keys() == {"test_holds[1]"}
    assert (core.status, core.selection) == ("partial", "--tests=core")
    assert core.notes == ("--tests=core: 2 of 3 tests",)
    assert title(core)[-1] == "core"


@pytest.mark.parametrize("workers", [(), (*WORKERS, "-n1")], ids=["one process", "worker"])
def test_run_with_a_plugin_that_deselects_is_partial(workers: tuple[str, ...], copied: Path, folder: Path) -> None:
    result = judge("-p", "dropping", *workers, root=copied)
    record = only_record(folder)
    assert (result.status, record.status, record.selection) == (0, "partial", ""), result.lines
    assert record.notes == ("1 tests were deselected (test_holds[2])",)
    assert [path.name.rpartition(".partial-")[2] for path in folder.glob("*")] == ["1.json"]


@pytest.mark.parametrize("workers", [(), (*WORKERS, "-n1")], ids=["one process", "worker"])
def test_run_that_exits_before_its_tests_is_interrupted(workers: tuple[str, ...], copied: Path, folder: Path) -> None:
    result = judge("-p", "stopping", *workers, root=copied)
    record = only_record(folder)
    assert (result.status, record.status) == (1, "interrupted"), result.lines
    assert "of 3 collected tests were not judged" in record.notes[0]


@pytest.mark.parametrize("arguments", [(), (*WORKERS, "-n1"), ("--continue-on-collection-errors",)])
def test_run_of_a_suite_that_cannot_be_imported_is_not_complete(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    root = copy_checkout(tmp_path, first=FIRST, second=BROKEN + SECOND)
    result = judge(*arguments, root=root)
    record = only_record(root / "results" / "records")
    assert result.status != 0, result.lines
    assert record.status != "complete"


SLOW_SUITE = """
@clause("scaling.automaton")
def test_flaky(subject: Subject, verdict: Verdict) -> None:
    verdict.holds(subject.framework.steady(), "steadiness", signature="restless")

@clause("scaling.automaton")
def test_fails(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 2, "numbers")

@clause("scaling.automaton")
def test_dies(subject: Subject, verdict: Verdict) -> None:
    if not subject.framework.steady():
        os.abort()

@clause("scaling.automaton")
def test_passes(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 1, "numbers")

@clause("scaling.automaton")
def test_sleeps_at_first(subject: Subject, verdict: Verdict) -> None:
    if not subject.framework.steady():
        time.sleep(3600.0)
    verdict.observe("sleeps", False)
"""
DYING = """
@clause("scaling.automaton")
@pytest.mark.parametrize("number", range(5))
def test_dies(number: int) -> None:
    os.abort()
"""
FAILED = TestVerdict("c/t", "c", Outcome.FAIL, signature="differs", message="numbers")
KNOWN = replace(FAILED, outcome=Outcome.KNOWN)
TIMED_OUT = replace(FAILED, outcome=Outcome.TIMEOUT, signature="timeout")
PASSED = replace(FAILED, outcome=Outcome.PASS, signature="", message="")
REFUSED = replace(FAILED, outcome=Outcome.UNSUPPORTED, signature="precision.O1-float16")
NEW = "fail (restless) in the run, pass and pass when repeated in a new process: steadiness"
SETTLED = {
    "test_flaky": (Outcome.UNSTABLE, ("pass", "pass"), NEW),
    "test_dies": (Outcome.UNSTABLE, ("pass", "pass"), "crash"),
    "test_fails": (Outcome.FAIL, ("fail (differs)",) * 2, ""),
    "test_passes": (Outcome.PASS, (), ""),
    "test_sleeps_at_first": (Outcome.PASS, ("pass", "pass"), ""),
}
"""Outcome, repeats and begin of the message of each test of the suite."""


def test_run_repeats_what_got_worse(tmp_path: Path) -> None:
    root = copy_checkout(tmp_path / "checkout", some=SLOW_SUITE)
    arguments = ("run", "--device=cpu", "tests.support.misbehaving:Flaky", f"--timeout={hang_limit(1.5):g}")
    result = conformance(*arguments, root=root, FLAKY=str(tmp_path / "first"), TMPDIR=str(tmp_path))
    assert (result.status, [*tmp_path.glob("conformance-*")]) == (1, [])
    for line in (
        "repeating 4 verdicts that got worse, 2 times, in new processes",
        "unstable, regressions that did not repeat in 2 new processes: 2 (test_dies, test_flaky)",
        "timed out while other tests ran, and not when repeated alone: 1 (test_sleeps_at_first)",
        "regressions that repeated in 2 new processes: 1 (test_fails)",
    ):
        assert line in result.output, result.output
    (path,) = (root / "results" / "records").iterdir()
    record = load(path)
    (observation,) = record.observations
    assert (observation.case, observation.value) == ("test_sleeps_at_first", False)
    verdicts = {verdict.case: verdict for verdict in record.verdicts}
    for case, (outcome, repeats, message) in SETTLED.items():
        assert (verdicts[case].outcome, verdicts[case].repeats) == (outcome, repeats), case
        assert verdicts[case].message.startswith(message)
    assert verdicts["test_flaky"].signature == "restless"


def test_run_goes_on_after_more_deaths_than_xdist_allows(tmp_path: Path) -> None:
    arguments = ("reference", f"--record={tmp_path / 'r.json'}", "--profile=nightly", "--tests=all", "--numprocesses=1")
    result = conformance("run", "--device=cpu", *arguments, root=copy_checkout(tmp_path / "checkout", dying=DYING))
    record = load(tmp_path / "r.json")
    assert (result.status, record.status) == (1, "complete"), result.lines
    assert [v.outcome for v in record.verdicts if v.case.startswith("test_dies")] == [Outcome.CRASH] * 5
    assert "repeat" not in result.output.replace("repeat: ", "")


@pytest.mark.parametrize(
    ("verdict", "repeats", "expected"),
    [
        (FAILED, (FAILED, FAILED), FAILED),
        (FAILED, (FAILED, PASSED), Outcome.UNSTABLE),
        (FAILED, (FAILED, replace(FAILED, outcome=Outcome.ERROR, signature="raises-ValueError")), FAILED),
        (FAILED, (KNOWN, FAILED), Outcome.UNSTABLE),
        (FAILED, (None, FAILED), FAILED),
        (FAILED, (None, None), FAILED),
        (KNOWN, (KNOWN, KNOWN), KNOWN),
        (KNOWN, (KNOWN, replace(KNOWN, signature="other")), Outcome.UNSTABLE),
        (KNOWN, (PASSED, KNOWN), Outcome.UNSTABLE),
        (REFUSED, (replace(REFUSED, signature="precision.O1-bfloat16"), REFUSED), REFUSED),
        (REFUSED, (replace(REFUSED, outcome=Outcome.NOT_OFFERED), REFUSED), REFUSED),
        (REFUSED, (PASSED, REFUSED), Outcome.UNSTABLE),
        (replace(REFUSED, outcome=Outcome.PASS), (REFUSED, REFUSED), Outcome.UNSTABLE),
        (TIMED_OUT, (TIMED_OUT, TIMED_OUT), TIMED_OUT),
        (TIMED_OUT, (None, None), TIMED_OUT),
        (TIMED_OUT, (PASSED, PASSED), PASSED),
        (TIMED_OUT, (KNOWN, KNOWN), KNOWN),
        (TIMED_OUT, (FAILED, replace(FAILED, message="others")), replace(FAILED, message="others")),
        (TIMED_OUT, (TIMED_OUT, PASSED), Outcome.UNSTABLE),
        (TIMED_OUT, (KNOWN, PASSED), Outcome.UNSTABLE),
    ],
)
def test_settle_of_repeats_keeps_or_replaces_the_verdict(
    verdict: TestVerdict, repeats: tuple[TestVerdict | None, ...], expected: TestVerdict | Outcome
) -> None:
    settled = settle(verdict, repeats)
    finished = [repeat for repeat in repeats if repeat is not None]
    assert settled.repeats == tuple(f"{v.outcome} ({v.signature})" if v.signature else v.outcome for v in finished)
    if isinstance(expected, Outcome):
        expected = replace(verdict, outcome=expected, message=settled.message)
    assert replace(settled, repeats=()) == expected


@pytest.fixture
def record() -> Record:
    """A record of tests of the inventory."""
    code = next(iter(inventory().values()))
    passed = TestVerdict(code.id, code.clause, Outcome.PASS, seed=0)
    absent = replace(passed, test=f"{code.clause}/expectation: differs", outcome=Outcome.ERROR)
    clauses = {**BASE.clauses, code.clause: next(iter(BASE.clauses.values()))}
    return replace(BASE, clauses=clauses, verdicts=(passed, absent, replace(absent, test=f"{code.clause}/every test")))


@pytest.mark.parametrize(
    ("former", "changes", "is_due"),
    [
        (Outcome.PASS, {"outcome": Outcome.PASS}, False),
        (Outcome.PASS, {"outcome": Outcome.FAIL, "signature": "differs"}, True),
        (Outcome.PASS, {"outcome": Outcome.KNOWN, "signature": "differs"}, True),
        (Outcome.PASS, {"outcome": Outcome.UNSUPPORTED, "signature": "scaling"}, True),
        (Outcome.PASS, {"outcome": Outcome.KNOWN, "signature": "differs", "setup_hash": "other"}, False),
        (Outcome.PASS, {"outcome": Outcome.TIMEOUT}, True),
        (Outcome.TIMEOUT, {"outcome": Outcome.TIMEOUT}, False),
    ],
)
def test_due_has_what_is_worse_than_the_baseline(
    monkeypatch: pytest.MonkeyPatch, record: Record, former: Outcome, changes: dict[str, Any], is_due: bool
) -> None:
    *unchanged, verdict = sorted(record.verdicts, key=lambda v: "/test_" in v.test)
    old, new = (
        replace(record, verdicts=(replace(verdict, **fields), *unchanged)) for fields in ({"outcome": former}, changes)
    )
    monkeypatch.setattr(retry, "former", lambda _: (Path("baseline.json"), old))
    assert due(new) == ([verdict.test] if is_due else [])
    assert due(replace(new, status="interrupted")) == []
    monkeypatch.setattr(retry, "former", lambda _: None)
    assert len(due(new)) == new.verdicts[0].outcome.bad


def test_judge_without_a_record_repeats_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jobs, "LAST_RUNS", tmp_path)
    monkeypatch.setattr(jobs, "run_to_end", lambda *_: 1)
    monkeypatch.setattr(jobs, "repeat", lambda *_: pytest.fail("something is repeated"))
    assert jobs.judge("reference", "", "cpu", 1, ["-k", "flaky"]) == 1


def test_lines_of_repeats_count_those_left_out() -> None:
    verdict = TestVerdict("s.x/test_a", "s.x", Outcome.UNSTABLE, repeats=("pass", "pass"))
    repeated = retry.RepeatResults(replace(BASE, verdicts=(verdict,)), (verdict.test,), (verdict.test,), omitted=3)
    assert repeated.lines == [
        "unstable, regressions that did not repeat in 2 new processes: 1 (test_a)",
        f"not repeated, beyond the limit of {retry.MOST}: 3 more",
    ]
