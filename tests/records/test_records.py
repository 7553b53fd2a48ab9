"""Records: byte-stable, valid by the published schema, and safe from whatever damages them."""

from __future__ import annotations

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
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cli import main
from conformance.runner import baselines
from results.record import files, values
from results.record.encoding import from_document
from results.record.files import MAX_BYTES
from results.record.folders import read
from results.record.reading import Outcome, RecordError, RunSetup, from_json, load, to_json, write
from results.record.schema import schema, text
from results.record.values import as_number, encode_number
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


def test_the_published_schema_is_that_of_the_classes() -> None:
    published = ROOT / "results" / "schema.json"
    assert published.read_text("utf-8") == text(), "python -m tools pages"


def test_what_the_schema_has_no_place_for_is_refused_with_its_place(complete: Path) -> None:
    for change in (
        lambda document: document["verdicts"][0]["checks"][0].update(extra=1),
        lambda document: document["tensors"][0]["arrays"][0].update(digest="short"),
        lambda document: document["measurements"][0].update(control="none"),
        lambda document: document["traces"].append(document["traces"][0]),
        lambda document: document["verdicts"][0]["runs"][0].update(recipe=[]),
    ):
        document = json.loads(complete.read_bytes())
        change(document)
        with pytest.raises(ValueError, match=r"`\$\.|occurs twice"):
            from_document(document)
    document = json.loads(complete.read_bytes())
    for name in ("observations", "tensors", "notes"):
        del document[name]
    assert from_document(document) == replace(load(complete), observations=(), tensors=(), notes=())


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


@pytest.mark.parametrize("value", ["NaN", "infinity", "", True, None, [], "inf\n"])
def test_other_things_are_no_numbers(value: object, complete: Path) -> None:
    document = json.loads(complete.read_bytes())
    document["traces"][0]["curves"]["loss"][0] = value
    with pytest.raises(ValueError, match="curves"):
        from_document(document)


def test_an_outcome_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(Outcome.PASS)
    quiet = {"pass", "known", "unsupported", "not offered", "abstain", "unstable"}
    assert {o for o in Outcome if o.bad} == set(Outcome) - quiet


def change(path: Path, **parts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | parts))


def observation(value: Any) -> dict[str, Any]:
    return {"clause": CLAUSE, "key": "k", "case": "", "value": value}


def refuses(path: Path) -> None:
    """A record is refused in one line that names the file and says what to do."""
    with pytest.raises(RecordError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    assert len(message.splitlines()) == 1
    assert ";" in message, "what to do"


DAMAGE: dict[str, Any] = {
    "not UTF-8": lambda p: p.write_bytes(b'{"a": "\xff"}'),
    "half a surrogate pair": lambda p: change(p, selection="\ud800"),
    "deeply nested": lambda p: p.write_bytes(b"[" * 200_000),
    "nested in an observation": lambda p: change(p, observations=[observation(json.loads("[" * 200 + "]" * 200))]),
    "bare NaN": lambda p: p.write_bytes(p.read_bytes().replace(b'"inf"', b"NaN")),
    "number out of range": lambda p: p.write_bytes(p.read_bytes().replace(b'"inf"', b"1e999")),
    "integer out of range": lambda p: p.write_bytes(p.read_bytes().replace(b'"inf"', b"9" * 4000)),
    "integer of many digits": lambda p: p.write_bytes(p.read_bytes().replace(b'"inf"', b"9" * 5000)),
    "key twice": lambda p: p.write_bytes(p.read_bytes().replace(b"{", b'{"status": "complete",', 1)),
    "another JSON document": lambda p: p.write_bytes(b'{"a": 1}'),
    "a list": lambda p: p.write_bytes(b"[]"),
    "newer version": lambda p: change(p, schema_version=4),
    "version true": lambda p: change(p, schema_version=True),
    "unknown field": lambda p: change(p, extra=1),
    "seed too large": lambda p: p.write_bytes(p.read_bytes().replace(b'"seed": 7', b'"seed": 1.7e308')),
    "seed infinite": lambda p: change(p, seed="inf"),
    "date of nothing": lambda p: change(p, started="yesterday"),
    "clause without text": lambda p: change(p, clauses={}),
    "verdict twice": lambda p: change(p, verdicts=json.loads(p.read_bytes())["verdicts"][:1] * 2),
    "huge": lambda p: os.truncate(p, MAX_BYTES + 1),
}


AS_WRITTEN = {
    "key twice": lambda text: text.replace('   "clause": ', '   "clause": "a.b",\n   "clause": ', 1),
    "unknown field": lambda text: text.replace('   "clause": ', '   "clauses": "a.b",\n   "clause": ', 1),
    "integer out of range": lambda text: text.replace('"inf"', "9" * 400, 1),
    "nested too deeply": lambda text: text.replace('"inf"', '{"a": ' * 60 + "1" + "}" * 60, 1),
    "out of order": lambda text: text.replace('"test": "', '"test": "~', 1),
}


@pytest.mark.parametrize("damage", AS_WRITTEN)
def test_what_is_no_record_is_refused_in_the_layout_of_one_too(damage: str, complete: Path) -> None:
    text = complete.read_text("utf-8")
    changed = AS_WRITTEN[damage](text)
    assert changed != text
    if damage == "nested too deeply":
        changed = msgspec.json.format(changed, indent=1) + "\n"
    assert msgspec.json.format(changed, indent=1) + "\n" == changed
    complete.write_text(changed, "utf-8")
    refuses(complete)


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_record_is_told_in_one_line(damage: str, complete: Path) -> None:
    DAMAGE[damage](complete)
    refuses(complete)


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


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-9],
    "empty": lambda _: b"",
    "plain": gzip.decompress,
    "goes on": lambda content: content + b"x",
    "another after it": lambda content: content * 2,
    "flipped": lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
    "expands without end": lambda _: gzip.compress(bytes(MAX_BYTES + 1)),
    "no record": lambda _: gzip.compress(b"{}"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_compressed_record_is_refused_in_one_line(how: str, complete: Path) -> None:
    path = complete.with_name("torch.json.gz")
    write(path, load(complete))
    path.write_bytes(SPOILED[how](path.read_bytes()))
    refuses(path)


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


def test_a_complete_record_has_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    write(path, replace(BASE, status="partial", verdicts=()))
    assert main(["table", str(path)]) == 0
    path.write_text(path.read_text("utf-8").replace('"partial"', '"complete"'), "utf-8")
    assert main(["table", str(path)]) == 2
    problem = "is not a valid record (status: got complete without a verdict, want at least one)"
    assert capsys.readouterr().err == f"conformance: {path}: {problem}; run the suite to write it again, or remove it\n"


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
