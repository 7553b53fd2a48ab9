"""`--tests quick|core|all`: which tests a selection has, and what its record is called."""

import json
from pathlib import Path

import pytest

from conformance.runner.jobs import selects
from conformance.runner.selection import ALL, CORE, QUICK, Selection, durations, path_of, read, write
from results.record.reading import load
from results.show.marks import title
from tests.support.suite_runs import WORKERS, by_case, checkout, judge

SUITE = """
import pytest
from conformance.checks.api import *

@clause("scaling.stays-finite")
@pytest.mark.parametrize("value", range(3))
def test_holds(subject: Subject, verdict: Verdict, value: int) -> None:
    verdict.equal(value, value, "the value")
"""
TEST = "scaling.stays-finite/test_holds"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = checkout(tmp_path_factory.mktemp("checkout"), first=SUITE)
    for path in (root / "conformance" / "runner" / "selections").glob("*.json"):
        path.unlink()
    write(root / "conformance" / "runner" / "selections" / "reference-emulated.json", CHOSEN)
    return root


CHOSEN = Selection(quick={TEST: ["1"]}, left_out={TEST: ["0"]})


def test_selection_has_its_tests_and_core_has_unknown_ones(tmp_path: Path) -> None:
    write(tmp_path / "x.json", CHOSEN)
    selection = read(tmp_path / "x.json")
    has = {name: [case for case in "0123" if selection.has(f"{TEST}[{case}]", name)] for name in (QUICK, CORE, ALL)}
    assert has == {QUICK: ["1"], CORE: ["1", "2", "3"], ALL: ["0", "1", "2", "3"]}
    assert read(None).has("a.b/test_c", CORE)


def test_selection_of_a_mode_without_a_file_is_the_frameworks_first(tmp_path: Path) -> None:
    assert path_of("torch", "eager", tmp_path) is None
    for name in ("paddle-static", "reference-emulated", "torch-eager", "torch-loop"):
        (tmp_path / f"{name}.json").touch()
    found = {case: getattr(path_of(*case, tmp_path), "stem", "") for case in CASES}
    assert found == CASES


CASES = {
    ("torch", "eager"): "torch-eager",
    ("torch", "compile"): "torch-eager",
    ("paddle", "dygraph"): "paddle-static",
    ("MyLoop", "loop"): "torch-loop",
    ("mine", "fast"): "reference-emulated",
}


def test_words_of_pytest_that_select_tests(tmp_path: Path) -> None:
    for words in (["-k", "scaling"], ["-mgpu"], ["a.py::test_b"], [str(tmp_path)], ["--deselect=x"]):
        assert selects(words), words
    assert not selects(["-x", "--seed=1", "--timeout=5"])


@pytest.mark.parametrize("workers", [(), (*WORKERS, "-n2")], ids=["one process", "workers"])
def test_run_of_a_selection_writes_a_partial_record(workers: tuple[str, ...], copied: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    ended = judge("--tests=core", f"--record={path}", *workers, root=copied)
    record = load(path)
    assert (ended.status, record.status, record.selection) == (0, "partial", "--tests=core"), ended.lines
    assert {*by_case(record)} == {"every test", "test_holds[1]", "test_holds[2]"}
    assert record.notes == ("--tests=core: 2 of 3 tests",)
    assert title(record)[-1] == "core"


def test_default_record_of_core_is_the_last_run_and_of_quick_lies_beside_it(copied: Path) -> None:
    for name in (CORE, QUICK):
        ended = judge(f"--tests={name}", root=copied)
        assert ended.status == 0, ended.lines
    paths = {path.name: [*by_case(load(path))] for path in (copied / "results" / "records").glob("*")}
    assert paths.keys() == {"reference-1-cpu-emulated.json", "reference-1-cpu-emulated.quick.json"}
    assert paths["reference-1-cpu-emulated.quick.json"] == ["test_holds[1]"]


def test_unknown_selection_is_refused(copied: Path) -> None:
    ended = judge("--tests=most", root=copied)
    assert ended.status in (2, 4)
    assert "invalid choice: 'most'" in " ".join(ended.lines)


def test_nearest_baseline_gives_the_seconds(tmp_path: Path) -> None:
    forced = durations("paddle", "dygraph-forced-scaler", "cpu")
    assert forced != durations("paddle", "dygraph", "cpu") != durations("paddle", "nothing", "cpu")
    assert durations("of-somebody-else", "eager", "cpu") == durations("reference", "emulated", "cpu")
    assert durations("torch", "eager", "cpu", tmp_path) == {}


def test_file_has_a_line_for_each_function(tmp_path: Path) -> None:
    write(tmp_path / "x.json", Selection({"b.c/test_d": ["2", "1"], "a.b/test_c": [""]}, {}))
    assert json.loads((tmp_path / "x.json").read_text()) == {
        "quick": {"a.b/test_c": [""], "b.c/test_d": ["1", "2"]},
        "left out of core": {},
    }
    assert len((tmp_path / "x.json").read_text().splitlines()) == 7
