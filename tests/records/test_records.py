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
from hypothesis import given, settings
from hypothesis import strategies as st

from results.record import files, lines, values
from results.record.encoding import from_document
from results.record.files import MAX_BYTES
from results.record.folders import read
from results.record.journal import Journal
from results.record.reading import Outcome, RecordError, RunSetup, encode_number, from_json, load, to_json, write
from results.record.schema import schema, text
from results.record.values import as_number
from tests.support.recorded import CLAUSE, filled, header

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


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Any] = {
    "empty": lambda p: p.write_bytes(b""),
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:-40]),
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
    "seed infinite": lambda p: change(p, seed="inf"),
    "date of nothing": lambda p: change(p, started="yesterday"),
    "clause without text": lambda p: change(p, clauses={}),
    "verdict twice": lambda p: change(p, verdicts=json.loads(p.read_bytes())["verdicts"][:1] * 2),
    "missing": lambda p: p.unlink(),
    "folder": lambda p: (p.unlink(), p.mkdir()),
    "pipe": become_a_pipe,
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
    with pytest.raises(RecordError):
        load(complete)


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
    with pytest.raises(RecordError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_every_committed_record_is_of_this_schema_and_compressed() -> None:
    paths = [path for name in ("baselines", "upgrades", "scenarios") for path in (ROOT / "results" / name).rglob("*")]
    records = [path for path in paths if path.is_file()]
    assert len(records) > 40
    for path in records:
        assert path.name.endswith(".json.gz")
        content = files.read(path)
        assert to_json(from_json(content)) == content, path
        assert not re.search(rb'"/(tmp|home|root|work)/|pytest-of-', content), path


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


@settings(max_examples=150)
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


@settings(max_examples=120)
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
        again.write_bytes(to_json(record))
        assert to_json(load(again)) == again.read_bytes()
    assert len(refusal.splitlines()) <= 1


def test_results_stand_alone() -> None:
    imports = "import sys, json, results.show.table, results.show.portability, results.record.journal"
    code = f"{imports}; print(json.dumps([m.split('.')[0] for m in sys.modules]))"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    foreign = {"fixtures", "frameworks", "conformance", "numpy", "torch", "tensorflow", "keras", "paddle", "jax"}
    assert not foreign & set(json.loads(printed))
