"""Workers: the order of tests, memory mappings, and the completeness of records."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from conformance.runner import selection, workers
from conformance.runner.selection import Selection
from results.record.model import Outcome, Record
from results.record.reading import load
from results.show.clauses import title
from tests.support.suite_runs import WORKERS, copy_checkout, judge, outcomes, outcomes_by_case

TESTS = 11
SUITE = f"""
from conformance.runner import workers

RAN = []
workers.mappings = lambda: 1_000_000_000 if len(RAN) >= 3 else 0


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
    assert most == workers.EVERY - 1
    assert any("nears the limit of memory mappings" in line for line in result.lines)


def test_run_by_loadscope_replaces_no_worker(tmp_path: Path) -> None:
    root = copy_checkout(tmp_path, filling=SUITE)
    record = root / "run.json"
    result = judge(*WORKERS, "-n1", "--dist=loadscope", f"--record={record}", root=root)
    assert result.status == 0, result.lines[-20:]
    assert len({observation.value for observation in load(record).observations}) == 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are counted in /proc")
def test_mappings_counts_memory_mappings() -> None:
    before, maps = workers.mappings(), []
    for index in range(50):  # neighbours of one kind would be one mapping
        access = mmap.PROT_READ if index % 2 else mmap.PROT_READ | mmap.PROT_WRITE
        maps.append(mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=access))
    assert workers.mappings() >= before + 40
    assert workers.most_mappings() > before
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
