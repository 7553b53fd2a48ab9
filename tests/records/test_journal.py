"""Journals and comparisons of folders of records."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from results.compare.comparison import compare_files, compare_sets
from results.record.files import RecordBusy
from results.record.folders import Outlines, find, list_records, read
from results.record.model import JudgedTest
from results.record.reading import (
    CUT,
    NO_VERDICT,
    Journal,
    Observation,
    Outcome,
    RecordError,
    TestVerdict,
    load,
    load_series,
    write,
)
from results.show import table
from tests.support import recorded
from tests.support.recorded import BASE, CLAUSE, fill_journal, header, make_judged_test, verdict
from tests.support.suite_runs import ROOT


def test_load_journal_cut_at_any_byte_has_the_verdicts_of_whole_lines(tmp_path: Path) -> None:
    small = replace(header(), clauses={CLAUSE: header().clauses[CLAUSE]})
    journal = Journal.create(tmp_path / "x.json", small)
    for test in (f"{CLAUSE}/first", f"{CLAUSE}/last"):
        journal.start(test, CLAUSE)
        journal.write_judged(JudgedTest(TestVerdict(test, CLAUSE, Outcome.PASS, message="≤")))
    content = journal.path.read_bytes()
    journal.close()
    cut = tmp_path / "cut.jsonl"
    for stop in range(len(content) + 1):
        cut.write_bytes(content[:stop])
        lines = [json.loads(line) for line in content[:stop].split(b"\n")[:-1]]
        if not lines:
            with pytest.raises(RecordError, match="header"):
                load(cut)
            continue
        record = load(cut)
        judged = {line["judged"]["verdict"]["test"] for line in lines if line["kind"] == "judged"}
        started = {line["verdict"]["test"] for line in lines if line["kind"] == "started"}
        assert record.status == "interrupted"
        assert record.notes == (() if content[:stop].endswith(b"\n") else (CUT,))
        assert {v.test for v in record.verdicts if v.outcome is Outcome.PASS} == judged
        assert {v.test for v in record.verdicts if v.outcome is Outcome.CRASH} == started - judged


def test_load_journal_with_crashed_test_says_how_to_repeat_it(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "x.json", header())
    journal.start(f"{CLAUSE}/t", CLAUSE, seed=3, repro="pytest t")
    (crash,) = load(journal.path).verdicts
    assert (crash.outcome, crash.message) == (Outcome.CRASH, NO_VERDICT)
    assert (crash.case, crash.seed, crash.repro) == ("t", 3, "pytest t")


def test_finish_interrupted_run_leaves_the_last_complete_record(complete: Path) -> None:
    before = complete.read_bytes()
    journal = fill_journal(Journal.create(complete, header()), 1)
    journal.start("in the middle", CLAUSE)
    stopped = journal.finish("interrupted")
    assert stopped.name == "torch.interrupted-1.json"
    assert [v.outcome for v in load(stopped).verdicts] == [Outcome.PASS]
    assert complete.read_bytes() == before
    assert not journal.path.exists()


def test_create_sets_an_earlier_journal_aside_and_copies_an_unreadable_one(tmp_path: Path) -> None:
    for count in (1, 2):
        fill_journal(Journal.create(tmp_path / "x.json", header()), count).close()
    (tmp_path / ".x.json.1.tmp").write_bytes(b"left by a killed writer")
    fill_journal(Journal.create(tmp_path / "x.json", header()), 3).finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.interrupted-1.json", "x.interrupted-2.json", "x.json"]
    assert [len(load(p).verdicts) for p in sorted(tmp_path.iterdir())] == [1, 2, 3]
    (tmp_path / "y.jsonl").write_bytes(b"noise")
    Journal.create(tmp_path / "y.json", header()).close()
    assert (tmp_path / "y.interrupted-1.damaged").read_bytes() == b"noise"


def test_create_twice_is_refused(tmp_path: Path) -> None:
    with closing(fill_journal(Journal.create(tmp_path / "x.json", header()))) as journal:
        content = journal.path.read_bytes()
        with pytest.raises(RecordBusy) as caught:
            Journal.create(tmp_path / "x.json", header())
        assert len(str(caught.value).splitlines()) == 1
        assert journal.path.read_bytes() == content
    Journal.create(tmp_path / "x.json", header()).close()


@pytest.mark.parametrize(("make", "ending"), [(os.mkfifo, "jsonl"), (Path.mkdir, "json")])
def test_create_over_a_pipe_or_a_folder_is_refused(make: Callable[[Path], object], ending: str, tmp_path: Path) -> None:
    make(tmp_path / f"x.{ending}")
    with pytest.raises(RecordError, match="is not a regular file, which a record cannot replace") as refusal:
        Journal.create(tmp_path / "x.json", header())
    assert len(str(refusal.value).splitlines()) == 1


def test_journal_of_wrong_arguments_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="started"):
        Journal.create(tmp_path / "x.json", replace(header(), started="yesterday"))
    with pytest.raises(ValueError, match=r"ends in \.json"):
        Journal.create(tmp_path / "x", header())
    with closing(Journal.create(tmp_path / "x.json", header())) as journal:
        before = journal.path.read_bytes()
        with pytest.raises(ValueError, match="no text"):
            journal.start("t", "scaling.unheard-of")
        with pytest.raises(TypeError, match="JSON"):
            journal.write_judged(replace(make_judged_test("t"), observations=(Observation(CLAUSE, "k", "", object()),)))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="duration"):
            journal.write_judged(JudgedTest(replace(verdict("t"), duration_s=-1.0)))
        assert journal.path.read_bytes() == before
    with pytest.raises(ValueError, match="closed"):
        journal.start("t", CLAUSE)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limits the size in bytes of every file that this process writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_journal_on_full_disk_loses_nothing_written(tmp_path: Path) -> None:
    journal = fill_journal(Journal.create(tmp_path / "x.json", header()))
    with files_of_at_most(journal.path.stat().st_size + 50):
        with pytest.raises(RecordError, match="cannot be written") as caught:
            journal.write_judged(make_judged_test("too much"))
        with pytest.raises(RecordError, match="cannot be written"):
            journal.finish()
    assert len(str(caught.value).splitlines()) == 1
    record = load(journal.path)
    assert len(record.verdicts) == 3
    assert not record.notes


def test_write_that_fails_leaves_the_old_record(complete: Path) -> None:
    before, record = complete.read_bytes(), load(complete)
    with files_of_at_most(100), pytest.raises(RecordError, match="cannot be written"):
        write(complete, record)
    assert [p.read_bytes() for p in complete.parent.iterdir()] == [before]
    with pytest.raises(RecordError, match="cannot be written"):
        Journal.create(complete / "below.json", header())


WRITER = """
import sys
from pathlib import Path
from results.record.reading import Journal
from tests.support.recorded import CLAUSE, header, make_judged_test
for run in range(10**6):
    journal = Journal.create(Path(sys.argv[1]), header())
    for index in range(5):
        test = f"{CLAUSE}/{run}.{index}"
        journal.start(test, CLAUSE)
        journal.write_judged(make_judged_test(test))
        print(run, index, flush=True)
    journal.finish()
"""


def test_journal_after_kill_9_has_every_printed_verdict(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    command = [sys.executable, "-c", WRITER, str(path)]
    rng = random.Random(1)
    for _ in range(4):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().split("\n")[:-1] or ["0 0"]
        run, index = map(int, lines[-1].split())
        result = [load(p) for p in (path, path.with_suffix(".jsonl")) if p.exists() and p.stat().st_size]
        passed = {v.test for record in result for v in record.verdicts if v.outcome is Outcome.PASS}
        assert {f"{CLAUSE}/{run}.{i}" for i in range(index + 1)} <= passed
        if run:
            assert load(path).status == "complete"


def test_outlines_of_records_share_texts_and_have_no_parts() -> None:
    path = list_records(ROOT / "results" / "baselines")[0]
    (first, second) = map(Outlines(), [load(path), load(path)])
    assert (first.measurements, first.traces, first.tensors) == ((), (), ())
    assert not any(verdict.checks or verdict.runs for verdict in first.verdicts)
    assert all(verdict.repro is same.repro for verdict, same in zip(first.verdicts, second.verdicts, strict=True))
    assert table.plain([first]) == table.plain([load(path)])


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of four records each, three of the same series."""
    for name, kinds in (("old", "abcx"), ("new", "abcy")):
        (tmp_path / name).mkdir()
        for kind in kinds:
            record = replace(BASE, series=replace(BASE.series, device_kind=kind))
            write(tmp_path / name / f"{kind}.json.gz", recorded.change_verdict(record, 0, message=name))
    return tmp_path / "old", tmp_path / "new"


def test_compare_files_has_the_result_of_compare_sets(folders: tuple[Path, Path]) -> None:
    old, new = folders
    result, expected = compare_files(find([old]), find([new])), compare_sets(read([old]), read([new]))
    assert (result.status, result.unmatched) == (expected.status, expected.unmatched)
    assert [pair.changes for pair in result.pairs] == [pair.changes for pair in expected.pairs]
    assert [pair.compared for pair in result.pairs] == [3, 3, 3]
    assert not any(record.verdicts for pair in result.pairs for record in (pair.old, pair.new))
    assert [line[:11] for line in compare_files(find([old]), find([new]), partial=True).unmatched] == ["torch eager"]


def test_compare_files_of_a_broken_record_is_refused(folders: tuple[Path, Path]) -> None:
    old, new = folders
    unmatched = new / "y.json.gz"
    record = load(unmatched)
    unmatched.unlink()
    broken = new / "y.json"
    write(broken, record)
    broken.write_text(broken.read_text("utf-8").replace('"duration_s"', '"lasted"', 1), "utf-8")
    assert load_series(broken) == record.series
    with pytest.raises(RecordError, match=r"y\.json"):
        compare_files(find([old]), find([new]))
