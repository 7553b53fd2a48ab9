"""Hundreds of records, and large or hostile ones: time grows with their number and memory stays within bounds."""

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.compare.pairing import compare_files, compare_sets
from results.record.files import replace_by
from results.record.folders import Outlines, find, read
from results.record.reading import Record, RecordError, RunSetup, load, load_series, write
from results.report.details import Details
from results.report.matrix import matrix
from results.report.text import number
from results.show import table
from tests.support.many import many
from tests.support.small_record import BASE, verdict

MEBIBYTE = 2**20


def cells(records: Sequence[Record], width: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many cells are made to lay these records out."""
    made = 0

    def counted(*arguments: object) -> object:
        nonlocal made
        made += 1
        return original(*arguments)  # type: ignore[arg-type]

    original = table._cell
    with monkeypatch.context() as patch:
        patch.setattr(table, "_cell", counted)
        assert table.layout(records, width)
    return made


def test_layout_of_twice_the_records_is_twice_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [BASE] * 200
    few, more = (cells(records[:count], 80, monkeypatch) for count in (100, 200))
    assert more <= 2.2 * few


def test_an_outline_has_no_parts_and_shares_texts() -> None:
    (first, second) = map(Outlines(), [*many(1), *many(1)])
    assert (first.measurements, first.traces, first.tensors) == ((), (), ())
    assert not any(verdict.checks or verdict.runs for verdict in first.verdicts)
    assert all(one.repro is other.repro for one, other in zip(first.verdicts, second.verdicts, strict=True))
    assert table.plain([first]) == table.plain(list(many(1)))


def test_an_outline_with_details_has_all_that_a_report_shows() -> None:
    (record,) = many(1)
    given = ((RunSetup("sincos", {"seed": place % 3}),) for place in range(len(record.verdicts)))
    record = replace(record, verdicts=tuple(replace(v, runs=r) for v, r in zip(record.verdicts, given, strict=True)))
    make = Outlines(details=True)
    first, second = make(record), make(replace(record))
    assert first == replace(record, tensors=())
    for one, other in zip(first.verdicts, second.verdicts, strict=True):
        assert all(a is b for a, b in zip(one.checks, other.checks, strict=True))
        assert all(a is b for a, b in zip(one.runs, other.runs, strict=True))
    assert len({id(run) for verdict in first.verdicts for run in verdict.runs}) == 3
    assert len({id(check) for verdict in first.verdicts for check in verdict.checks}) > 500


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of records of three series and of one more each."""
    for place, kinds in (("old", "abcx"), ("new", "abcy")):
        (tmp_path / place).mkdir()
        for kind in kinds:
            record = replace(BASE, series=replace(BASE.series, device_kind=kind))
            write(tmp_path / place / f"{kind}.json.gz", verdict(record, 0, message=place))
    return tmp_path / "old", tmp_path / "new"


def test_folders_are_compared_as_their_records_are_and_only_two_are_kept(folders: tuple[Path, Path]) -> None:
    old, new = folders
    result, expected = compare_files(find([old]), find([new])), compare_sets(read([old]), read([new]))
    assert (result.status, result.unmatched) == (expected.status, expected.unmatched)
    assert [pair.changes for pair in result.pairs] == [pair.changes for pair in expected.pairs]
    assert [pair.compared for pair in result.pairs] == [3, 3, 3]
    assert not any(record.verdicts for pair in result.pairs for record in (pair.old, pair.new))
    assert [line[:11] for line in compare_files(find([old]), find([new]), partial=True).unmatched] == ["torch eager"]


def test_the_garbage_collector_pauses_while_records_are_read(folders: tuple[Path, Path]) -> None:
    paused: list[bool] = []

    def convert(record: Record) -> Record:
        paused.append(not gc.isenabled())
        return record

    def refuse(record: Record) -> Record:
        raise ValueError(record.status)

    assert read([folders[0]], convert=convert)
    assert paused == [True] * 4
    assert gc.isenabled()
    with pytest.raises(ValueError, match="complete"):
        read([folders[0]], convert=refuse)
    assert gc.isenabled()


def test_a_broken_record_without_a_partner_is_refused(folders: tuple[Path, Path]) -> None:
    old, new = folders
    alone = new / "y.json.gz"
    record = load(alone)
    alone.unlink()
    broken = new / "y.json"
    write(broken, record)
    broken.write_text(broken.read_text("utf-8").replace('"duration_s"', '"lasted"', 1), "utf-8")
    assert load_series(broken) == record.series
    with pytest.raises(RecordError, match=r"y\.json"):
        compare_files(find([old]), find([new]))


def test_a_page_has_equal_verdicts_and_checks_once() -> None:
    def details(*records: Record) -> dict[str, Any]:
        result: dict[str, Any] = json.loads("".join(Details().pieces(matrix(records), records)))
        return result

    (record,) = many(1)
    slower = replace(record, verdicts=tuple(replace(each, duration_s=each.duration_s + 1) for each in record.verdicts))
    once, twice = details(record), details(record, slower)
    assert all(once[name] == twice[name] for name in ("verdicts", "checks", "derivations"))
    expected = {verdict.test.partition("/")[2]: verdict for verdict in slower.verdicts}
    tests = [test for row in twice["rows"] for test in row["tests"]["1"]]
    assert len(tests) == len(slower.verdicts) == sum(len(row["tests"]["0"]) for row in twice["rows"])
    for test in tests:
        entry = twice["verdicts"][test["verdict"]]
        verdict = expected[entry["test"]]
        assert test["seconds"] == number(round(verdict.duration_s, 3))
        checks = [twice["checks"][check] for check in entry.get("checks", ())]
        wanted = [(check.passed, check.what) for check in verdict.checks[: len(checks)]]
        assert [(check["passed"], check["what"]) for check in checks] == wanted
        assert len(checks) + entry.get("left", 0) == len(verdict.checks)


def test_a_page_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", "utf-8")

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace_by(path, pieces())
    assert [each.read_text("utf-8") for each in tmp_path.iterdir()] == ["old"]
