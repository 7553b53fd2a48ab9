"""Records: stable bytes, the published schema, refusals in one line, and bounds of what reading costs."""

import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.record import files, values
from results.record.encoding import schema
from results.record.files import MAX_BYTES
from results.record.folders import read
from results.record.reading import (
    MAX_SIGNS,
    SIGNS,
    Journal,
    Outcome,
    RecordError,
    RunSetup,
    from_json,
    load,
    to_json,
    write,
)
from results.record.values import as_number, encode_number
from results.show import portability
from results.show.table import digest, plain
from tests.support.recorded import BASE, CLAUSE, fill_journal, header
from tests.support.suite_runs import ROOT, assert_refused, call_command, conformance, environment, hang_limit


def test_write_of_a_loaded_record_gives_the_same_bytes(complete: Path) -> None:
    record = load(complete)
    again = complete.with_name("again.json")
    write(again, record)
    assert again.read_bytes() == complete.read_bytes() == to_json(load(again))
    assert to_json(replace(record, verdicts=record.verdicts[::-1])) == to_json(record)
    text = complete.read_text("utf-8")
    assert text.endswith("}\n")
    assert text == values.to_text(json.loads(text))
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
    assert values.number(encoded) == number or math.isnan(number)


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


VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], {"": {}}, [None] * 40, 0, 1, -1, 0.5, 1e308, 2**63, 2**1023 - 1, 10**400),
    *("", " ", "1", "null", "inf", "nan", "complete", "interrupted", "pass", "crash", "MUST", "a/b", "x" * 20_000),
    *(CLAUSE, f"{CLAUSE}\n", "autocast.op-dtypes", "test_a[1]", "2026-01-02T03:04:05Z", "9999-99-99T99:99:99Z"),
    *("\n", "\x00", "\x1b[2J\x1b]0;x\x07", "\x9b31m", "\u202eabc", "[bold]x[/]", "{{ 7*7 }}", "%s {0}", "::error::e"),
    *("<script>alert(1)</script>", "` | ** _ #1 @you", "javascript:alert(1)", "http://[::1", "../../etc/passwd"),
)
PIECES = (
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b'"', b"\\", b"\\ud800", b"{", b"}", b"[", b"]"),
    *(b",", b":", b"-", b"0", b"NaN", b"Infinity", b"1e400", b"null", b"9" * 400, b"\x1b[2J", b"[" * 5000),
)


def mutants(record: bytes, journal: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Damaged copies of a record and of a journal: file ending and content; the same for the same seed."""
    rng = random.Random(seed)
    for number in range(count):
        content, ending = (record, ".json") if number % 2 else (journal, ".jsonl")
        if number % 3 == 0:
            yield ending, change_bytes(content, rng)
        elif ending == ".json":
            yield ending, json.dumps(change_nodes(json.loads(content), rng)).encode()
        else:
            lines = change_nodes([json.loads(line) for line in content.splitlines()], rng)
            yield ending, "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content))
    stop = rng.choice((start, start + 1, start + 8, rng.randrange(start, len(content))))
    piece = rng.choice((b"", b"", rng.randbytes(4), content[start:stop] * 2, *PIECES))
    return content[:start] + piece + content[stop:] if rng.random() < 0.9 else content[:start]


def change_nodes(document: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 1, 2))):
        nodes = list(list_nodes(document))
        parent, key = rng.choice(nodes)
        same_type = [value for value in VALUES if type(value) is type(parent[key])]
        value = rng.choice(same_type if same_type and rng.random() < 0.7 else VALUES)
        match rng.randrange(5):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent["extra"] = parent.pop(key)
            case 2 if isinstance(parent, list):
                parent.append(parent[key])
            case _:
                parent[key] = value
    return document


def list_nodes(parent: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(parent) if isinstance(parent, dict) else range(len(parent)):
        yield parent, key
        if isinstance(parent[key], dict | list):
            yield from list_nodes(parent[key])


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

MUTANTS = 200
MEMORY, SECONDS = 10**9, 5.0
"""Limits in bytes and seconds of processor time for reading one file."""

OWN_MODULES = {*sys.stdlib_module_names, "conformance", "frameworks", "results", "fixtures", "numpy", "rich", "click"}
"""Packages that a command may import while it reads a record, whatever the record contains."""


def assert_visible(text: str) -> str:
    """Asserts that a text has no control character but the line break; returns the text."""
    assert text.replace("\n", "").replace("\u200b", "").isprintable(), "\u200b keeps Markdown from linking"
    return text


def test_commands_of_a_mutated_record_read_or_refuse_it(tmp_path: Path) -> None:
    folder, good = tmp_path / "damaged", tmp_path / "good.json"
    folder.mkdir()
    journal = fill_journal(Journal.create(good, header()), 1)
    content = journal.path.read_bytes()
    journal.finish()
    before, imported = sorted(tmp_path.rglob("*")), set(sys.modules)
    counts: Counter[bool] = Counter()
    for number, (ending, damaged) in enumerate(mutants(good.read_bytes(), content, MUTANTS, 0)):
        path = folder / f"damaged{ending}"
        path.write_bytes(damaged)
        pair = (path, good) if number % 2 else (good, path)
        style = ("table", "markdown", "json")[number % 3]
        completed = call_command("compare", *pair, "--format", style)
        counts[completed.errors == ""] += 1
        if completed.errors:
            assert_refused(completed, path)
            assert_refused(call_command("table", path), path)
        else:
            assert completed.status in (0, 1, 2)
            assert_visible(completed.output)
            record = load(path)
            write(path.with_suffix(".json"), record)
            assert to_json(load(path.with_suffix(".json"))) == to_json(record)
            assert "clauses" in assert_visible(plain([record], 20 + number % 150))
            assert "clause" in assert_visible("\n".join(portability.list_clauses([record, load(good)])))
            assert "## Conformance" in assert_visible(digest([record]))
        for damaged_path in folder.iterdir():
            damaged_path.unlink()
    assert min(counts.values()) > MUTANTS // 10, "the mutants are too often read, or refused"
    assert sorted(tmp_path.rglob("*")) == before, "a command wrote a file"
    assert {name.partition(".")[0] for name in set(sys.modules) - imported} <= OWN_MODULES


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
