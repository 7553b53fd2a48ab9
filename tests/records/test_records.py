"""Records and journals: stable bytes, the published schema, refusals in one line, and bounds of what reading costs."""

import gzip
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.compare.comparison import compare_files, compare_sets
from results.record import files, model
from results.record.files import MAX_BYTES, RecordBusy
from results.record.folders import Outlines, find, list_records, read
from results.record.model import JudgedTest, as_number, encode_number
from results.record.reading import (
    CUT,
    MAX_SIGNS,
    NO_VERDICT,
    SIGNS,
    Journal,
    Observation,
    Outcome,
    RecordError,
    RunSetup,
    TestVerdict,
    from_json,
    load,
    load_series,
    schema,
    to_json,
    write,
)
from results.show import table
from tests.support import recorded
from tests.support.recorded import BASE, CLAUSE, fill_journal, header, make_judged_test, verdict
from tests.support.suite_runs import ROOT, assert_refused, call_command, conformance, environment, hang_limit


def test_write_of_a_loaded_record_gives_the_same_bytes(complete: Path) -> None:
    record = load(complete)
    again = complete.with_name("again.json")
    write(again, record)
    assert again.read_bytes() == complete.read_bytes() == to_json(load(again))
    assert to_json(replace(record, verdicts=record.verdicts[::-1])) == to_json(record)
    text = complete.read_text("utf-8")
    assert text.endswith("}\n")
    assert text == model.to_text(json.loads(text))
    keys = re.findall(r'^ "(\w+)"', text, re.MULTILINE)
    assert keys == sorted(keys)
    assert len(keys) > 10


def test_load_restores_values(complete: Path) -> None:
    record = load(complete)
    check = record.verdicts[0].checks[0]
    assert check.measured == math.inf
    assert check.bound == 2.0**127
    assert record.verdicts[0].outcome is Outcome.PASS
    counted, timed = record.measurements
    assert (counted.key, counted.samples, counted.control) == ("bytes", (1.0, math.inf), ())
    assert timed.control == (1.0, 1.25)
    assert math.isnan(record.traces[0].curves["loss"][1])
    assert record.tensors[0].arrays[0].norm == math.inf
    (observation,) = record.observations
    assert (observation.clause, observation.key, observation.case) == ("autocast.op-dtypes", "matmul", "test[0]")
    assert observation.value == {"O1": ["float16", -math.inf, 1, None, True]}
    assert record.verdicts[0].runs == (RunSetup("sincos", {"seed": 3, "clip": math.inf}),)
    assert set(record.clauses) == {CLAUSE, "autocast.op-dtypes", "cost.recompute-bytes"}
    assert (record.status, record.seed, record.variant.environment["ä"]) == ("complete", 7, "ö")


def test_schema_accepts_records(complete: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(complete.read_bytes()), schema())
    assert set(schema()["$defs"]["Outcome"]["enum"]) == {o.value for o in Outcome}


def test_from_json_fills_in_defaults(complete: Path) -> None:
    document = json.loads(complete.read_bytes())
    for name in ("observations", "tensors", "notes"):
        del document[name]
    expected = replace(load(complete), observations=(), tensors=(), notes=())
    assert to_json(from_json(json.dumps(document).encode())) == to_json(expected)


def test_as_number_of_other_text_is_the_text() -> None:
    for text in ("0.015625", "-0.0", "1e-05", "512.0", "3", "-17"):
        assert repr(as_number(text)) == text
    for text in ("", "1.50", "1_000", "0x10", "007", "float32[1.0]", "1e5", " 1", "9" * 5000):
        assert as_number(text) == text


@given(st.floats())
def test_number_of_an_encoded_number_is_the_same(number: float) -> None:
    encoded = json.loads(json.dumps(encode_number(number), allow_nan=False))
    assert model.number(encoded) == number or math.isnan(number)


def test_bool_of_an_outcome_raises() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(Outcome.PASS)
    quiet = {"pass", "known", "unsupported", "not offered", "abstain", "unstable"}
    assert {o for o in Outcome if o.bad} == set(Outcome) - quiet


Change = Callable[[bytes], bytes]


def change(**parts: Any) -> Change:
    """Replaces fields of a record."""
    return lambda content: json.dumps(json.loads(content) | parts).encode()


def change_at(path: str, **parts: Any) -> Change:
    """Replaces fields of a part of a record, such as "verdicts.0"."""

    def damage(content: bytes) -> bytes:
        document = part = json.loads(content)
        for key in path.split("."):
            part = part[int(key) if key.isdigit() else key]
        part.update(parts)
        return json.dumps(document).encode()

    return damage


def put(value: bytes) -> Change:
    """Replaces the first infinite number."""
    return lambda content: content.replace(b'"inf"', value, 1)


NESTED = {"clause": CLAUSE, "key": "k", "case": "", "value": json.loads("[" * 99 + "]" * 99)}
DAMAGE: list[tuple[str, Change, str]] = [
    ("x.json", lambda _: b"", "truncated"),
    ("x.json", lambda content: content[:1000], "truncated"),
    ("x.json", lambda _: b'{"a": "\xff"}', "not a valid record"),
    ("x.json", lambda _: b"[" * 200_000, "not a valid record"),
    ("x.json", lambda _: bytes(MAX_BYTES + 1), "larger than 32 MiB"),
    ("x.json", lambda _: b"[" * (MAX_SIGNS + 1), "too many values"),
    ("x.json", lambda _: b'{"a": 1}', "no schema_version"),
    ("x.json", lambda _: b"[]", "Expected `object`"),
    ("x.json", change(schema_version=4), "got 4, want 3); a newer suite wrote it: update this one"),
    ("x.json", change(schema_version=2), "got 2, want 3); run the suite to write it again"),
    ("x.json", change(schema_version=True), "got True, want 3"),
    ("x.json", change(extra=1), "unknown field `extra`"),
    ("x.json", change_at("verdicts.0", extra=1), "unknown field `extra` - at `$.verdicts[0]`"),
    ("x.json", change_at("verdicts.0.checks.0", extra=1), "`$.verdicts[0].checks[0]`"),
    ("x.json", change_at("tensors.0.arrays.0", digest="short"), "`$.tensors[0].arrays[0].digest`"),
    ("x.json", change_at("verdicts.0.runs.0", recipe=[]), "`$.verdicts[0].runs[0].recipe`"),
    ("x.json", change_at("measurements.0", control="none"), "`$.measurements[0].control`"),
    ("x.json", change_at("traces.0.curves", loss=["NaN"]), "`$.traces[0].curves"),
    ("x.json", change_at("verdicts.0", clause=f"{CLAUSE}\n"), "matching regex"),
    ("x.json", change_at("verdicts.0", finding="unknown"), "names finding 'unknown', whose text is missing"),
    ("x.json", change_at("verdicts.0", test="other.clause/test"), "is not of clause"),
    ("x.json", change(clauses={}), "whose text is missing"),
    ("x.json", change(status="complete", verdicts=[]), "got complete without a verdict"),
    ("x.json", change(started="yesterday"), "matching regex"),
    ("x.json", change(started="2026-02-30T00:00:00Z"), "is not a date"),
    ("x.json", change(seed="inf"), "Expected `int`, got `str`"),
    ("x.json", change(seed=2**63), "not a valid record"),
    ("x.json", put(b"NaN"), "malformed"),
    ("x.json", put(b"1e999"), "out of range"),
    ("x.json", put(b"9" * 4000), "out of range"),
    ("x.json", put(b"9" * 5000), "not a valid record"),
    ("x.json", put(b'"\\ud800"'), "not a valid record"),
    ("x.json", change(observations=[NESTED]), "nested more than 56 deep"),
    ("x.json", lambda content: change(verdicts=2 * json.loads(content)["verdicts"])(content), "occurs twice or out"),
    ("x.json.gz", lambda content: gzip.compress(content)[:-9], "not compressed by gzip"),
    ("x.json.gz", bytes, "not compressed by gzip"),
    ("x.json.gz", lambda content: gzip.compress(content) + b"x", "not compressed by gzip"),
    ("x.json.gz", lambda _: b"", "truncated"),
    ("x.json.gz", lambda _: gzip.compress(bytes(MAX_BYTES + 1)), "larger than 32 MiB"),
    ("x.json.gz", lambda _: gzip.compress(b"{}"), "no schema_version"),
    ("x.jsonl", bytes, "line 1 of the journal"),
    ("x.jsonl", lambda _: b"", "header is missing"),
    ("x.jsonl", lambda _: b'{"kind": "end", "at": 1, "status": "complete", "finished": ""}\n', "header is missing"),
    ("x.jsonl", lambda _: b'{"kind": "header", "at": 0, "schema_version": 2, "header": {}}\n', "got 2, want 3"),
    ("x.jsonl", lambda _: b'{"kind": "header", "at": "inf", "schema_version": 3, "header": {}}\n', "Expected `float`"),
    ("x.jsonl", lambda _: b'{"kind": "other", "at": 0}\n', "line 1 of the journal: Invalid value 'other'"),
]
"""What is in a file of that name, and what its refusal says."""


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE)
def test_load_of_a_damaged_record_is_refused_in_one_line(
    name: str, damage: Change, message: str, complete: Path
) -> None:
    path = complete.with_name(name)
    path.write_bytes(damage(complete.read_bytes()))
    refuse(path, message)


def refuse(path: Path, message: str) -> None:
    """Asserts that a file is refused in one line that names it and says what to do."""
    with pytest.raises(RecordError, match=re.escape(message)) as refusal:
        load(path)
    text = str(refusal.value)
    assert str(path) in text
    assert text.isprintable()
    assert ";" in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (lambda path: path.symlink_to(path.with_name("nothing")), "no such file"),
    ],
)
def test_load_of_no_regular_file_is_refused(make: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    make(tmp_path / "x.json")
    refuse(tmp_path / "x.json", message)


def test_report_of_a_folder_with_a_broken_record_leaves_the_old_page(complete: Path) -> None:
    pytest.importorskip("jinja2")
    page, broken = complete.with_name("page.html"), complete.with_name("broken.json")
    page.write_text("old", "utf-8")
    broken.write_text("{", "utf-8")
    assert_refused(call_command("report", complete.parent, "--output", page), broken)
    assert page.read_text("utf-8") == "old"


def test_write_of_a_compressed_record_gives_the_same_bytes(complete: Path) -> None:
    packed = complete.with_name("torch.json.gz")
    write(packed, load(complete))
    content = packed.read_bytes()
    assert len(content) < len(complete.read_bytes()) / 2
    assert load(packed) == load(complete)
    assert gzip.decompress(content) == complete.read_bytes()
    assert content[4:8] == bytes(4)
    complete.unlink()
    assert read([complete.parent]) == [load(packed)]


def list_committed_files() -> list[Path]:
    folders = (ROOT / "results" / name for name in ("baselines", "upgrades", "scenarios"))
    return [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.name != "costs.toml"]


@pytest.mark.slow
def test_committed_records_are_of_this_schema() -> None:
    for path in list_committed_files():
        content = files.read(path)
        assert to_json(from_json(content)) == content, path


def test_committed_records_are_small_and_name_no_folder() -> None:
    for path in list_committed_files():
        assert path.name.endswith(".json.gz")
        content = files.read(path)
        assert 2 * len(content) < MAX_BYTES, path
        assert 2 * (len(content) - len(content.translate(None, SIGNS))) < MAX_SIGNS, path
        assert not re.search(rb'"/(tmp|home|root|work)/|pytest-of-', content), path


def fill_template(template: str, piece: str, count: int = MAX_BYTES, brackets: str = "[]") -> bytes:
    """A record with up to `count` pieces in place of HOLE, as many as a file has room for; "#" becomes a number."""
    before, after = template.split('"HOLE"')
    count = min(count, (MAX_BYTES - len(template)) // (len(piece.replace("#", "0" * 8)) + 1))
    pieces = ",".join(piece.replace("#", f"{number:08d}") for number in range(count))
    return f"{before}{brackets[:1]}{pieces}{brackets[1:]}{after}".encode()


DOCUMENT = json.loads(to_json(BASE))
VALUE_RECORD = json.dumps({**DOCUMENT, "observations": [{"clause": CLAUSE, "key": "k", "case": "", "value": "HOLE"}]})
VERDICT = f'{{"test":"{CLAUSE}/#","clause":"{CLAUSE}","outcome":"pass"}}'
CHECK = '{"what":"w","measured":1,"bound":1,"expected":1,"passed":true}'
CHECKS_RECORD = json.dumps({**DOCUMENT, "verdicts": [{**json.loads(VERDICT), "checks": "HOLE"}]})
JOURNAL_LINE = '{"at":1,"kind":"judged","judged":{"verdict":' + VERDICT + "}}\n"

OVERSIZED: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: fill_template(VALUE_RECORD, "[]"),
    "many keys": lambda: fill_template(VALUE_RECORD, '"#":1', MAX_SIGNS // 3, "{}"),
    "many verdicts": lambda: fill_template(json.dumps({**DOCUMENT, "verdicts": "HOLE"}), VERDICT, MAX_SIGNS // 8),
    "many checks": lambda: fill_template(CHECKS_RECORD, CHECK, MAX_SIGNS // 12),
    "long numbers": lambda: fill_template(VALUE_RECORD, "9" * 4000),
    "one escaped text": lambda: fill_template(VALUE_RECORD, r"\u0001" * (MAX_BYTES // 7), 1, '""'),
    "brackets alone": lambda: b"[" * MAX_BYTES,
    "journal of many verdicts": lambda: "".join(
        JOURNAL_LINE.replace("#", f"{number:08d}") for number in range(MAX_SIGNS // 18)
    ).encode(),
}
"""Files that cost as much to read as their size allows, by name."""

MEMORY, SECONDS = 10**9, 5.0
"""Limits in bytes and seconds of processor time for reading one file."""

_READER = """
import json, os, resource, sys
from pathlib import Path
from results.record.reading import RecordError, load

for line in sys.stdin:
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        resource.setrlimit(resource.RLIMIT_AS, (6 * 10**9, 6 * 10**9))
        try:
            message = f"read, {len(load(Path(line.removesuffix(chr(10)))).verdicts)} verdicts"
        except RecordError as error:
            message = str(error)
        used = resource.getrusage(resource.RUSAGE_SELF)
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
        print(json.dumps([int(peak.split()[1]) * 1024, used.ru_utime + used.ru_stime, message]), flush=True)
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"the reader ended with {status}")
"""


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    """A process that reads each file in a fork of itself."""
    argv, pipe = [sys.executable, "-c", _READER], subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.communicate(timeout=hang_limit())


@pytest.mark.parametrize("name", OVERSIZED)
def test_load_of_an_oversized_file_stays_in_bounds(reader: subprocess.Popen[str], name: str, tmp_path: Path) -> None:
    path = tmp_path / ("large.jsonl" if name.startswith("journal") else "large.json")
    content = OVERSIZED[name]()
    if path.suffix == ".jsonl":
        journal = Journal.create(tmp_path / "small.json", header())
        content = journal.path.read_bytes() + content
        journal.close()
    path.write_bytes(content)
    for _ in range(3):
        print(path, file=reader.stdin, flush=True)
        memory, seconds, message = json.loads(reader.stdout.readline())
        if seconds <= SECONDS:
            break
    assert "\n" not in message
    assert (memory <= MEMORY, seconds <= SECONDS) == (True, True), (memory, seconds, message)


def test_compare_prints_question_marks_where_the_terminal_lacks_characters(tmp_path: Path) -> None:
    for name, version in (("old", "2.13.0"), ("new", "ü")):
        write(tmp_path / f"{name}.json", replace(BASE, variant=replace(BASE.variant, framework_version=version)))
    completed = conformance("compare", tmp_path / "old.json", tmp_path / "new.json", PYTHONIOENCODING="ascii")
    assert (completed.status, completed.errors) == (0, "")
    assert "2.13.0 ? ?" in completed.output


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
