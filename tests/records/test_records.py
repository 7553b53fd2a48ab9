"""Records: byte-stable, valid by the published schema, and safe from whatever damages them."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cli import main
from conformance.runner import baselines
from results.record import files, values
from results.record.files import MAX_BYTES
from results.record.folders import read
from results.record.reading import MAX_SIGNS, Outcome, RecordError, RunSetup, from_json, load, to_json, write
from results.record.schema import schema
from results.record.values import as_number, encode_number
from tests.support.hostile import call, refused
from tests.support.recorded import CLAUSE
from tests.support.small_record import BASE

ROOT = Path(__file__).parents[2]


def test_round_trip_is_byte_stable(complete: Path) -> None:
    record = load(complete)
    again = complete.with_name("again.json")
    write(again, record)
    assert again.read_bytes() == complete.read_bytes() == to_json(load(again))
    text = complete.read_text("utf-8")
    assert text.endswith("}\n")
    assert text == values.to_text(json.loads(text))
    keys = re.findall(r'^ "(\w+)"', text, re.MULTILINE)
    assert keys == sorted(keys)
    assert len(keys) > 10


def test_values_return(complete: Path) -> None:
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
    assert set(record.clauses) == {CLAUSE, "autocast.op-dtypes", "cost.recompute-bytes"}, "only what was judged"
    assert (record.status, record.seed, record.variant.environment["ä"]) == ("complete", 7, "ö")


def test_schema_is_a_schema_and_accepts_records(complete: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(complete.read_bytes()), schema())
    assert set(schema()["$defs"]["Outcome"]["enum"]) == {o.value for o in Outcome}


def test_from_json_fills_in_defaults_and_names_the_place_of_a_mistake(complete: Path) -> None:
    for change in (
        lambda document: document["verdicts"][0]["checks"][0].update(extra=1),
        lambda document: document["tensors"][0]["arrays"][0].update(digest="short"),
        lambda document: document["measurements"][0].update(control="none"),
        lambda document: document["traces"][0]["curves"].update(loss=["NaN"]),
        lambda document: document["verdicts"][0]["runs"][0].update(recipe=[]),
    ):
        document = json.loads(complete.read_bytes())
        change(document)
        with pytest.raises(ValueError, match=r"`\$\."):
            from_json(json.dumps(document).encode())
    document = json.loads(complete.read_bytes())
    for name in ("observations", "tensors", "notes"):
        del document[name]
    expected = replace(load(complete), observations=(), tensors=(), notes=())
    assert to_json(from_json(json.dumps(document).encode())) == to_json(expected)


@pytest.mark.parametrize("text", ["0.015625", "-0.0", "1e-05", "512.0", "3", "-17"])
def test_a_number_as_text_is_a_number(text: str) -> None:
    assert repr(as_number(text)) == text


@pytest.mark.parametrize("text", ["", "1.50", "1_000", "0x10", "007", "float32[1.0]", "1e5", " 1", "9" * 5000])
def test_any_other_text_stays_one(text: str) -> None:
    assert as_number(text) == text


def test_order_of_verdicts_does_not_matter(complete: Path) -> None:
    record = load(complete)
    assert to_json(replace(record, verdicts=record.verdicts[::-1])) == to_json(record)


@given(st.floats())
def test_numbers_survive(number: float) -> None:
    encoded = json.loads(json.dumps(encode_number(number), allow_nan=False))
    assert values.number(encoded) == number or math.isnan(number)


def test_an_outcome_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(Outcome.PASS)
    quiet = {"pass", "known", "unsupported", "not offered", "abstain", "unstable"}
    assert {o for o in Outcome if o.bad} == set(Outcome) - quiet


def change(**parts: Any) -> Callable[[bytes], bytes]:
    """Replaces fields of a record."""
    return lambda content: json.dumps(json.loads(content) | parts).encode()


def change_verdict(**parts: Any) -> Callable[[bytes], bytes]:
    """Replaces fields of the first verdict of a record."""

    def damage(content: bytes) -> bytes:
        document = json.loads(content)
        document["verdicts"][0] |= parts
        return json.dumps(document).encode()

    return damage


def put(value: bytes) -> Callable[[bytes], bytes]:
    """Replaces the first infinite number."""
    return lambda content: content.replace(b'"inf"', value, 1)


def repeat(content: bytes) -> bytes:
    return change(verdicts=json.loads(content)["verdicts"] * 2)(content)


def nest(content: bytes) -> bytes:
    return change(observations=[{"clause": CLAUSE, "key": "k", "case": "", "value": json.loads("[" * 99 + "]" * 99)}])(
        content
    )


def as_it_is(content: bytes) -> bytes:
    return content


Change = Callable[[bytes], bytes]
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
    ("x.json", change_verdict(extra=1), "unknown field `extra` - at `$.verdicts[0]`"),
    ("x.json", change_verdict(clause=f"{CLAUSE}\n"), "matching regex"),
    ("x.json", change_verdict(finding="unknown"), "names finding 'unknown', whose text is missing"),
    ("x.json", change_verdict(test="other.clause/test"), "is not of clause"),
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
    ("x.json", nest, "nested more than 56 deep"),
    ("x.json", repeat, "occurs twice or out of order"),
    ("x.json.gz", lambda content: gzip.compress(content)[:-9], "not compressed by gzip"),
    ("x.json.gz", as_it_is, "not compressed by gzip"),
    ("x.json.gz", lambda content: gzip.compress(content) + b"x", "not compressed by gzip"),
    ("x.json.gz", lambda _: b"", "truncated"),
    ("x.json.gz", lambda _: gzip.compress(bytes(MAX_BYTES + 1)), "larger than 32 MiB"),
    ("x.json.gz", lambda _: gzip.compress(b"{}"), "no schema_version"),
    ("x.jsonl", as_it_is, "line 1 of the journal"),
    ("x.jsonl", lambda _: b"", "header is missing"),
    ("x.jsonl", lambda _: b'{"kind": "end", "at": 1, "status": "complete", "finished": ""}\n', "header is missing"),
    ("x.jsonl", lambda _: b'{"kind": "header", "at": 0, "schema_version": 2, "header": {}}\n', "got 2, want 3"),
    ("x.jsonl", lambda _: b'{"kind": "header", "at": "inf", "schema_version": 3, "header": {}}\n', "Expected `float`"),
    ("x.jsonl", lambda _: b'{"kind": "other", "at": 0}\n', "line 1 of the journal: Invalid value 'other'"),
]
"""What is in a file of that name, and what its refusal says."""


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE)
def test_load_refuses_in_one_line(name: str, damage: Change, message: str, complete: Path) -> None:
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
    assert ";" in text, "what to do"


PLACES: dict[str, Callable[[Path], object]] = {
    "not a regular file": os.mkfifo,
    "is not a regular file": Path.mkdir,
    "too many levels": lambda path: path.symlink_to(path),
    "no such file": lambda path: path.symlink_to(path.with_name("nothing")),
    "file name too long": lambda _: None,
}


@pytest.mark.parametrize("message", PLACES)
def test_load_what_is_no_file_is_refused(message: str, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300 if message == "file name too long" else "x.json")
    PLACES[message](path)
    before = len(os.listdir("/proc/self/fd"))
    refuse(path, message)
    assert len(os.listdir("/proc/self/fd")) == before, "a file stays open"


def test_report_of_a_folder_with_a_broken_record_leaves_the_old_page(complete: Path) -> None:
    pytest.importorskip("jinja2")
    page, broken = complete.with_name("page.html"), complete.with_name("broken.json")
    page.write_text("old", "utf-8")
    broken.write_text("{", "utf-8")
    refused(call(main, "report", complete.parent, "--output", page), broken)
    assert page.read_text("utf-8") == "old"


def test_a_compressed_record_is_the_same_record_and_the_same_bytes(complete: Path) -> None:
    packed = complete.with_name("torch.json.gz")
    write(packed, load(complete))
    content = packed.read_bytes()
    assert len(content) < len(complete.read_bytes()) / 2
    assert load(packed) == load(complete)
    assert gzip.decompress(content) == complete.read_bytes()
    assert content[4:8] == bytes(4), "no time of writing"
    complete.unlink()
    assert read([complete.parent]) == [load(packed)]


def committed() -> list[Path]:
    """The committed records."""
    folders = (ROOT / "results" / name for name in ("baselines", "upgrades", "scenarios"))
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_every_committed_record_is_of_this_schema() -> None:
    for path in committed():
        content = files.read(path)
        assert to_json(from_json(content)) == content, path


def test_every_committed_record_is_compressed_and_names_no_folder() -> None:
    for path in committed():
        assert path.name.endswith(".json.gz")
        content = files.read(path)
        assert not re.search(rb'"/(tmp|home|root|work)/|pytest-of-', content), path


def test_results_stand_alone() -> None:
    imports = "import sys, json, results.show.table, results.show.portability, results.record.journal"
    code = f"{imports}; print(json.dumps([m.split('.')[0] for m in sys.modules]))"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    foreign = {"fixtures", "frameworks", "conformance", "numpy", "torch", "tensorflow", "keras", "paddle", "jax"}
    assert not foreign & set(json.loads(printed))


def test_nothing_is_shown_of_a_record_that_may_not_be_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(baselines, "lacking", lambda _: [])
    path = tmp_path / "x.json"
    write(path, replace(BASE, seed=5))
    before = sorted(baselines.BASELINES.iterdir())
    assert main(["accept", str(path), "--reason", "no"]) == 2
    said = capsys.readouterr()
    assert said.err == f"conformance: {path}: is of seed 5, and baselines are of seed 0; run with --seed=0\n"
    assert not said.out
    assert sorted(baselines.BASELINES.iterdir()) == before
