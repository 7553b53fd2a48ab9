"""A run of some tests never passes for a run of all, whatever left the others out, and its exit status says so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from results.record.model import Record
from results.record.reading import load
from tests.support.suite_runs import WORKERS, by_case, checkout, judge

FIRST = """
import pytest

from conformance.checks.api import Subject, Verdict, clause


@clause("scaling.automaton")
@pytest.mark.parametrize("value", [1, 2])
def test_holds(subject: Subject, verdict: Verdict, value: int) -> None:
    verdict.equal(value, value, "a value")
"""
SECOND = """
from conformance.checks.api import Subject, Verdict, clause


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


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = checkout(tmp_path_factory.mktemp("checkout"), first=FIRST, second=SECOND)
    for name, source in (("dropping", DROPPING), ("stopping", STOPPING)):
        (root / f"{name}.py").write_text(source)
    return root


@pytest.fixture
def folder(copied: Path) -> Iterator[Path]:
    """Where runs write their records by default."""
    records = copied / "results" / "records"
    yield records
    for path in records.glob("*"):
        path.unlink()


def the_record(folder: Path) -> Record:
    """The only record in the folder."""
    (path,) = folder.glob("*")
    return load(path)


SELECTIONS = (
    ["--ignore=conformance/suites/test_second.py"],
    ["--ignore-glob=*second*"],
    ["--deselect=conformance/suites/test_second.py::test_stands"],
    ["-k", "holds"],
    ["conformance/suites/test_first.py"],
    ["conformance/suites/test_first.py::test_holds[1]", "conformance/suites/test_second.py"],
    ["-o", "python_files=test_f*.py"],
)


def test_a_run_of_all_tests_is_complete(copied: Path, folder: Path) -> None:
    ended = judge(root=copied)
    record = the_record(folder)
    assert (ended.status, record.status, record.notes) == (0, "complete", ()), ended.lines
    assert by_case(record).keys() == ALL


@pytest.mark.parametrize("words", SELECTIONS, ids=" ".join)
def test_a_selection_is_partial(words: list[str], copied: Path, tmp_path: Path) -> None:
    ended = judge(*words, f"--record={tmp_path / 'run.json'}", root=copied)
    (path,) = tmp_path.glob("*.json")
    record = load(path)
    assert (ended.status, record.status) == (0, "partial"), ended.lines
    assert record.notes or "::" in record.selection
    assert "every test" not in by_case(record)


@pytest.mark.parametrize("words", SELECTIONS[1:3], ids=" ".join)
def test_a_selection_writes_no_default_record(words: list[str], copied: Path, folder: Path) -> None:
    assert judge(*words, root=copied).status == 0
    assert not list(folder.glob("*"))


@pytest.mark.parametrize("workers", [(), (*WORKERS, "-n1")], ids=["one process", "worker"])
def test_what_a_plugin_leaves_out_is_counted(workers: tuple[str, ...], copied: Path, folder: Path) -> None:
    ended = judge("-p", "dropping", *workers, root=copied)
    record = the_record(folder)
    assert (ended.status, record.status, record.selection) == (0, "partial", ""), ended.lines
    assert record.notes == ("1 tests were deselected (test_holds[2])",)
    assert [path.name.rpartition(".partial-")[2] for path in folder.glob("*")] == ["1.json"]


@pytest.mark.parametrize("workers", [(), (*WORKERS, "-n1")], ids=["one process", "worker"])
def test_a_session_that_ends_before_its_tests_fails(workers: tuple[str, ...], copied: Path, folder: Path) -> None:
    ended = judge("-p", "stopping", *workers, root=copied)
    record = the_record(folder)
    assert (ended.status, record.status) == (1, "interrupted"), ended.lines
    assert "of 3 collected tests were not judged" in record.notes[0]


@pytest.mark.parametrize("words", [(), (*WORKERS, "-n1"), ("--continue-on-collection-errors",)])
def test_a_suite_that_cannot_be_imported_leaves_no_complete_record(tmp_path: Path, words: tuple[str, ...]) -> None:
    root = checkout(tmp_path, first=FIRST, second=BROKEN + SECOND)
    ended = judge(*words, root=root)
    record = the_record(root / "results" / "records")
    assert ended.status != 0, ended.lines
    assert record.status != "complete"
