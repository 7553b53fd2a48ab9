"""Records and journals: byte-stable, valid by the published schema, and safe from whatever cuts or damages them."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results import lines, model
from results.files import MAX_BYTES
from results.journal import Journal, convert, recover
from results.records import (
    Check,
    ClauseText,
    Header,
    Measurement,
    Outcome,
    RecordBusy,
    RecordError,
    Series,
    Suite,
    Variant,
    Verdict,
    decode_number,
    dumps,
    encode_number,
    load,
    write,
)

ROOT = Path(__file__).parent.parent
CLAUSE = "scaling.stays-finite"


def header() -> Header:
    texts = {
        name: ClauseText("MUST", "S and 1/S stay ≤ ∞.", "paper §3", ("https://example.org/1",), name.split(".")[0])
        for name in (CLAUSE, "autocast.op-dtypes", "cost.recompute-bytes", "master.untested")
    }
    suite = Suite("0.1.0", (CLAUSE, "autocast.op-dtypes"), ("master.untested",))
    series, variant = Series("torch", "auto", "cpu", "eager"), Variant("2.13.0+cpu", {"threads": "1", "ä": "ö"})
    return Header(suite, series, variant, "2026-01-02T03:04:05+00:00", 7, "-k scaling", texts)


def verdict(test: str, outcome: Outcome = Outcome.PASS) -> Verdict:
    check = Check("scale", math.inf, 2.0**127, None, False, {"method": "closed form", "samples": [1.5, math.nan]})
    return Verdict(test, CLAUSE, outcome, "adam", "scale-inf", "line\nline", (check,), "why", "", "abc", 3, "pytest …")


def filled(journal: Journal, count: int = 3) -> Journal:
    for index in range(count):
        journal.start(f"suite.py::test[{index}]", CLAUSE, case=str(index), repro="pytest")
        journal.verdict(verdict(f"suite.py::test[{index}]"))
    journal.observation("autocast.op-dtypes", "matmul", {"O1": ["float16", -math.inf, 1, None, True]})
    journal.measurement("bytes", Measurement("B", (1.0, math.inf), "cost.recompute-bytes"))
    journal.trace("sincos", {"loss": (2.5, math.nan), "scale": (65536.0, 32768.0)})
    return journal


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    return filled(Journal.create(tmp_path / "torch.json", header())).finish()


# ---------------------------------------------------------------- records


def test_round_trip_is_byte_stable(complete: Path) -> None:
    record = load(complete)
    again = complete.with_name("again.json")
    write(again, record)
    assert again.read_bytes() == complete.read_bytes() == dumps(load(again))
    text = complete.read_text("utf-8")
    assert text.endswith("}\n")
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def test_values_return(complete: Path) -> None:
    record = load(complete)
    check = record.verdicts[0].checks[0]
    assert check.measured == math.inf
    assert check.bound == 2.0**127
    assert record.verdicts[0].outcome is Outcome.PASS
    assert record.measurements["bytes"].samples == (1.0, math.inf)
    assert math.isnan(record.traces["sincos"]["loss"][1])
    assert record.observations["autocast.op-dtypes/matmul"] == {"O1": ["float16", -math.inf, 1, None, True]}
    assert set(record.clauses) == {CLAUSE, "autocast.op-dtypes", "cost.recompute-bytes"}, "only what was judged"
    assert (record.status, record.seed, record.variant.environment["ä"]) == ("complete", 7, "ö")


def test_schema_is_a_schema_and_accepts_records(complete: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(model.schema())
    jsonschema.validate(json.loads(complete.read_bytes()), model.schema())
    assert set(model.schema()["$defs"]["verdict"]["properties"]["outcome"]["enum"]) == {o.value for o in Outcome}


def test_order_of_verdicts_does_not_matter(complete: Path) -> None:
    record = load(complete)
    assert dumps(replace(record, verdicts=record.verdicts[::-1])) == dumps(record)


@given(st.floats())
def test_numbers_survive(number: float) -> None:
    encoded = json.loads(json.dumps(encode_number(number), allow_nan=False))
    assert decode_number(encoded) == number or math.isnan(number)


@pytest.mark.parametrize("value", ["NaN", "infinity", "", True, None, [], "inf\n"])
def test_other_things_are_no_numbers(value: object) -> None:
    with pytest.raises(ValueError, match="no number"):
        decode_number(value)


def test_an_outcome_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(Outcome.PASS)
    assert {o for o in Outcome if o.bad} == set(Outcome) - {"pass", "known", "unsupported", "abstain"}


def change(path: Path, **parts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | parts))


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Any] = {
    "empty": lambda p: p.write_bytes(b""),
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:-40]),
    "not UTF-8": lambda p: p.write_bytes(b'{"a": "\xff"}'),
    "half a surrogate pair": lambda p: change(p, selection="\ud800"),
    "deeply nested": lambda p: p.write_bytes(b"[" * 200_000),
    "nested in an observation": lambda p: change(p, observations={f"{CLAUSE}/k": json.loads("[" * 200 + "]" * 200)}),
    "bare NaN": lambda p: p.write_bytes(p.read_bytes().replace(b'"inf"', b"NaN")),
    "number out of range": lambda p: p.write_bytes(p.read_bytes().replace(b'"inf"', b"1e999")),
    "integer out of range": lambda p: p.write_bytes(p.read_bytes().replace(b'"inf"', b"9" * 4000)),
    "integer of many digits": lambda p: p.write_bytes(p.read_bytes().replace(b'"inf"', b"9" * 5000)),
    "key twice": lambda p: p.write_bytes(p.read_bytes().replace(b"{", b'{"status": "complete",', 1)),
    "another JSON document": lambda p: p.write_bytes(b'{"a": 1}'),
    "a list": lambda p: p.write_bytes(b"[]"),
    "newer version": lambda p: change(p, schema_version=2),
    "version true": lambda p: change(p, schema_version=True),
    "unknown field": lambda p: change(p, extra=1),
    "seed infinite": lambda p: change(p, seed="inf"),
    "date of nothing": lambda p: change(p, started="yesterday"),
    "clause without text": lambda p: change(p, clauses={}),
    "verdict twice": lambda p: change(p, verdicts=json.loads(p.read_bytes())["verdicts"][:1] * 2),
    "missing": lambda p: p.unlink(),
    "folder": lambda p: (p.unlink(), p.mkdir()),
    "pipe": become_a_pipe,
    "huge": lambda p: os.truncate(p, MAX_BYTES + 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_record_is_told_in_one_line(damage: str, complete: Path) -> None:
    DAMAGE[damage](complete)
    with pytest.raises(RecordError) as caught:
        load(complete)
    message = str(caught.value)
    assert str(complete) in message
    assert len(message.splitlines()) == 1
    assert ";" in message, "what to do"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    folder = tmp_path_factory.mktemp("fuzz")
    journal = filled(Journal.create(folder / "x.json", header()), 1)
    content = journal.path.read_bytes()
    return folder, content, journal.finish().read_bytes()


MUTATION = st.tuples(st.floats(0, 1), st.sampled_from(["set", "delete", "insert", "cut"]), st.binary(max_size=6))


def mutated(content: bytes, mutations: list[tuple[float, str, bytes]]) -> bytes:
    for where, how, data in mutations:
        at = int(where * len(content))
        match how:
            case "set":
                content = content[:at] + data + content[at + len(data) :]
            case "delete":
                content = content[:at] + content[at + len(data) :]
            case "insert":
                content = content[:at] + data + content[at:]
            case _:
                content = content[:at]
    return content


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([".json", ".jsonl"]), st.lists(MUTATION, min_size=1, max_size=3))
def test_mutated_bytes_give_a_record_or_an_error(
    sample: tuple[Path, bytes, bytes], suffix: str, mutations: list[tuple[float, str, bytes]]
) -> None:
    folder, journal, record = sample
    path = folder / f"mutant{suffix}"
    path.write_bytes(mutated(record if suffix == ".json" else journal, mutations))
    assert_loads_or_refuses(path)


SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
JSON = st.recursive(SCALAR, st.lists, max_leaves=4)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_foreign_values_give_a_record_or_an_error(sample: tuple[Path, bytes, bytes], data: st.DataObject) -> None:
    folder, journal, record = sample
    suffix = data.draw(st.sampled_from([".json", ".jsonl"]))
    journaled = suffix == ".jsonl"
    entries: Any = [lines.decode_line(line) for line in journal.splitlines()] if journaled else [json.loads(record)]
    node = entries
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.integers(0, 5)) == 0:
            break
        node = node[key]
    node[key] = data.draw(JSON)
    path = folder / f"foreign{suffix}"
    try:
        encode = lines.encode_line if journaled else lambda document: json.dumps(document).encode()
        whole = [encode(entry) for entry in entries]
    except ValueError:  # a NaN or a surrogate that our own writer refuses
        return
    path.write_bytes(b"".join(whole))
    assert_loads_or_refuses(path)


def assert_loads_or_refuses(path: Path) -> None:
    try:
        record = load(path)
    except RecordError as error:
        refusal = str(error)
    else:
        refusal = ""
        again = path.with_name("again.json")
        again.write_bytes(dumps(record))
        assert dumps(load(again)) == again.read_bytes()
    assert len(refusal.splitlines()) <= 1


# ---------------------------------------------------------------- journals


def test_a_journal_cut_at_any_byte_gives_the_verdicts_whose_line_is_whole(tmp_path: Path) -> None:
    small = replace(header(), clauses={CLAUSE: header().clauses[CLAUSE]})
    journal = Journal.create(tmp_path / "x.json", small)
    for test in ("first", "last"):
        journal.start(test, CLAUSE)
        journal.verdict(Verdict(test, CLAUSE, Outcome.PASS, message="≤"))
    content = journal.path.read_bytes()
    journal.close()
    whole = [lines.decode_line(line) for line in content.splitlines()]
    ends = [sum(map(len, content.splitlines(keepends=True)[: n + 1])) - 1 for n in range(len(whole))]
    cut = tmp_path / "cut.jsonl"
    for at in range(len(content) + 1):
        cut.write_bytes(content[:at])
        seen = [entry for entry, end in zip(whole, ends, strict=True) if entry and end <= at]
        if not seen:
            with pytest.raises(RecordError, match="header"):
                recover(cut)
            continue
        record = recover(cut)
        judged = {e["verdict"]["test"] for e in seen if e["kind"] == "verdict"}
        begun = {e["verdict"]["test"] for e in seen if e["kind"] == "started"}
        assert record.status == "interrupted"
        assert {v.test for v in record.verdicts if v.outcome is Outcome.PASS} == judged
        assert {v.test for v in record.verdicts if v.outcome is Outcome.CRASH} == begun - judged


def test_a_flipped_byte_costs_its_own_line(tmp_path: Path) -> None:
    journal = filled(Journal.create(tmp_path / "x.json", header()))
    content = bytearray(journal.path.read_bytes())
    journal.close()
    first = content.index(b"\n")
    flipped = tmp_path / "flipped.jsonl"
    for at in random.Random(0).sample(range(first + 1, len(content)), 150):
        content[at] ^= 1 << at % 8
        flipped.write_bytes(content)
        record = recover(flipped)
        content[at] ^= 1 << at % 8
        lost = [v for v in record.verdicts if v.outcome is Outcome.CRASH]
        assert len(record.verdicts) >= 2
        assert len(lost) <= 1
        assert all(v.message == lines.DAMAGED for v in lost)
        assert record.notes or content[at : at + 1] == b"\n"


def test_a_crashed_test_can_be_repeated(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "x.json", header())
    journal.start("t", CLAUSE, case="adam", code_hash="abc", seed=3, repro="pytest t")
    (crash,) = recover(journal.path).verdicts
    assert (crash.outcome, crash.message) == (Outcome.CRASH, lines.NO_VERDICT)
    assert (crash.case, crash.code_hash, crash.seed, crash.repro) == ("adam", "abc", 3, "pytest t")


def test_a_run_stopped_on_purpose_leaves_the_last_complete_record(complete: Path) -> None:
    before = complete.read_bytes()
    journal = filled(Journal.create(complete, header()), 1)
    journal.start("in the middle", CLAUSE)
    stopped = journal.finish("interrupted")
    assert stopped.name == "torch.interrupted-1.json"
    assert [v.outcome for v in load(stopped).verdicts] == [Outcome.PASS]
    assert complete.read_bytes() == before
    assert not journal.path.exists()


def test_an_earlier_journal_is_kept(tmp_path: Path) -> None:
    for count in (1, 2):
        filled(Journal.create(tmp_path / "x.json", header()), count).close()
    (tmp_path / ".x.json.1.tmp").write_bytes(b"left by a killed writer")
    filled(Journal.create(tmp_path / "x.json", header()), 3).finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.interrupted-1.json", "x.interrupted-2.json", "x.json"]
    assert [len(load(p).verdicts) for p in sorted(tmp_path.iterdir())] == [1, 2, 3]


def test_a_journal_that_says_nothing_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"noise")
    Journal.create(tmp_path / "x.json", header()).close()
    assert (tmp_path / "x.interrupted-1.damaged").read_bytes() == b"noise"


def test_a_finish_that_was_cut_short_is_finished_by_the_next_run(tmp_path: Path) -> None:
    journal = filled(Journal.create(tmp_path / "x.json", header()))
    journal._append("end", status="complete", finished="2026-01-02T03:04:06+00:00")
    journal.close()
    assert convert(journal.path) == tmp_path / "x.json"
    assert load(tmp_path / "x.json").status == "complete"


def test_two_runs_cannot_write_one_record(tmp_path: Path) -> None:
    with filled(Journal.create(tmp_path / "x.json", header())) as journal:
        content = journal.path.read_bytes()
        for attempt in (lambda: Journal.create(tmp_path / "x.json", header()), lambda: convert(journal.path)):
            with pytest.raises(RecordBusy) as caught:
                attempt()
            assert len(str(caught.value).splitlines()) == 1
        assert journal.path.read_bytes() == content
    Journal.create(tmp_path / "x.json", header()).close()


def test_mistakes_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="started"):
        Journal.create(tmp_path / "x.json", replace(header(), started="yesterday"))
    with pytest.raises(ValueError, match=r"ends in \.json"):
        Journal.create(tmp_path / "x", header())
    with Journal.create(tmp_path / "x.json", header()) as journal:
        before = journal.path.read_bytes()
        with pytest.raises(ValueError, match="no text"):
            journal.start("t", "scaling.unheard-of")
        with pytest.raises(TypeError, match="JSON"):
            journal.observation(CLAUSE, "k", object())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="duration"):
            journal.verdict(replace(verdict("t"), duration_s=-1.0))
        assert journal.path.read_bytes() == before
    with pytest.raises(ValueError, match="closed"):
        journal.start("t", CLAUSE)


def test_a_full_disk_is_told_in_one_line_and_costs_nothing_written(tmp_path: Path) -> None:
    journal = filled(Journal.create(tmp_path / "x.json", header()))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 100, hard))
    try:
        with pytest.raises(RecordError, match="cannot be written") as caught:
            journal.verdict(verdict("too much"))
        with pytest.raises(RecordError, match="cannot be written"):
            journal.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(str(caught.value).splitlines()) == 1
    record = recover(journal.path)
    assert len(record.verdicts) == 3
    assert not record.notes


def test_a_failed_replacement_leaves_the_old_record(complete: Path) -> None:
    before, record = complete.read_bytes(), load(complete)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(RecordError, match="cannot be written"):
            write(complete, record)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.read_bytes() for p in complete.parent.iterdir()] == [before]
    with pytest.raises(RecordError, match="cannot be written"):
        Journal.create(complete / "below.json", header())


WRITER = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("helpers", sys.argv[1])
helpers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helpers)
for run in range(10**6):
    journal = helpers.Journal.create(Path(sys.argv[2]), helpers.header())
    for index in range(5):
        journal.start(f"{run}.{index}", helpers.CLAUSE)
        journal.verdict(helpers.verdict(f"{run}.{index}"))
        print(run, index, flush=True)
    journal.finish()
"""


def test_kill_9_loses_nothing_that_was_told(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    command = [sys.executable, "-c", WRITER, __file__, str(path)]
    rng = random.Random(1)
    for _ in range(4):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
            told = process.stdout.read().split("\n")[:-1] or ["0 0"]
        run, index = map(int, told[-1].split())
        found = [load(p) for p in (path, path.with_suffix(".jsonl")) if p.exists() and p.stat().st_size]
        passed = {v.test for record in found for v in record.verdicts if v.outcome is Outcome.PASS}
        assert {f"{run}.{i}" for i in range(index + 1)} <= passed
        if run:
            assert load(path).status == "complete"


def test_results_stand_alone() -> None:
    code = "import sys, json, results.__main__; print(json.dumps([m.split('.')[0] for m in sys.modules]))"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    foreign = {"fixtures", "frameworks", "conformance", "numpy", "torch", "tensorflow", "keras", "paddle", "jax"}
    assert not foreign & set(json.loads(printed))
