"""Records of earlier versions of the schema are read as if they were of the present one."""

from __future__ import annotations

import json
import math
import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.compare.comparison import compare
from results.record.reading import Record, RecordError, from_json, load, to_json
from results.record.upgrading import present_case, upgrade
from tests.support.hostile import VALUES, Raw
from tests.support.small_record import BASE, CLAUSE

OLD = Path(__file__).parents[1] / "records" / "schema-1.json"


@pytest.fixture
def document() -> dict[str, Any]:
    """A record of version 1."""
    result: dict[str, Any] = json.loads(OLD.read_bytes())
    return result


def renamed(name: str, document: dict[str, Any]) -> str:
    """A name that ends in a test's name of this record, with the present name of the test."""
    for verdict in document["verdicts"]:
        case = verdict["test"].partition("::")[2]
        if name.endswith(f"/{case}"):
            return f"{name.removesuffix(case)}{present_case(verdict['clause'], case)}"
    return name


def test_nothing_of_an_old_record_is_lost(document: dict[str, Any]) -> None:
    record = load(OLD)
    assert document["schema_version"] == 1
    names = [(v["clause"], v["test"].partition("::")[2]) for v in document["verdicts"]]
    assert [(v.clause, v.case) for v in record.verdicts] == sorted((c, present_case(c, name)) for c, name in names)
    assert {v.outcome.value for v in record.verdicts} == {v["outcome"] for v in document["verdicts"]}
    for old, new in (
        (document["observations"], [(f"{o.clause}/{o.key}/{o.case}", o.value) for o in record.observations]),
        (document["traces"], [(f"{t.key}/{t.case}", {**t.curves}) for t in record.traces]),
    ):
        assert sorted(name for name, _ in new) == sorted(renamed(name, document) for name in old)
    for parts, former in ((record.measurements, "measurements"), (record.tensors, "tensors")):
        assert [f"{each.key}/{each.case}" for each in parts] == sorted(
            renamed(name, document) for name in document[former]
        )
    (name,) = document["measurements"]
    assert list(record.measurements[0].samples) == document["measurements"][name]["samples"]
    assert record.traces[0].curves["spread"][-1] == math.inf
    digests = [[each["digest"] for each in arrays] for _, arrays in sorted(document["tensors"].items())]
    assert [[each.digest for each in one.arrays] for one in record.tensors] == digests
    cases = {verdict.case for verdict in record.verdicts}
    assert {one.case for one in (*record.observations, *record.measurements, *record.traces, *record.tensors)} <= cases


def test_a_number_that_was_text_is_a_number(document: dict[str, Any]) -> None:
    old = [check["measured"] for verdict in document["verdicts"] for check in verdict["checks"]]
    new = [check.measured for verdict in load(OLD).verdicts for check in verdict.checks]
    assert ("0.015625" in old, 0.015625 in new, "0.015625" in new) == (True, True, False)


def test_an_old_record_is_written_as_a_new_one_and_is_the_same() -> None:
    record = load(OLD)
    content = to_json(record)
    assert json.loads(content)["schema_version"] == 3
    assert to_json(from_json(content)) == content
    assert compare(record, from_json(content)).identical


def test_the_upgrade_leaves_its_argument(document: dict[str, Any]) -> None:
    before = deepcopy(document)
    upgrade(document)
    assert document == before


@pytest.mark.parametrize(
    ("name", "key", "case"),
    [
        ("bytes/test_x", "bytes", "test_x"),
        ("a/b/test_x[c/test_y]", "a/b", "test_x[c/test_y]"),
        ("saved bytes/two segments", "saved bytes", "two segments"),
        ("alone", "alone", ""),
        ("/test_x", "/test_x", ""),
        ("a/", "a/", ""),
        ("a/test_x\n", "a", "test_x\n"),
    ],
)
def test_a_glued_name_is_taken_apart(name: str, key: str, case: str, document: dict[str, Any]) -> None:
    (trace,) = document["traces"].values()
    (upgraded,) = upgrade({**document, "traces": {name: trace}})["traces"]
    assert (upgraded["key"], upgraded["case"]) == (key, case)


@pytest.mark.parametrize("part", ["verdicts", "observations", "measurements", "traces", "tensors", "clauses", "suite"])
def test_what_is_no_old_record_is_refused_in_one_line(part: str, document: dict[str, Any], tmp_path: Path) -> None:
    path, rng = tmp_path / "old.json", random.Random(0)
    for value in rng.sample([value for value in VALUES if not isinstance(value, Raw)], 30):
        path.write_text(json.dumps({**document, part: value}), "utf-8")
        refusal = ""
        try:
            record = load(path)
        except RecordError as error:
            refusal = str(error)
        else:
            assert to_json(from_json(to_json(record))) == to_json(record)
        assert len(refusal.splitlines()) <= 1


def version_2(clause: str, *verdicts: dict[str, Any]) -> dict[str, Any]:
    """A record of version 2 with these verdicts of one clause."""
    document: dict[str, Any] = json.loads(to_json(replace(BASE, observations=(), measurements=())))
    texts = {name: value for name, value in vars(BASE.clauses[CLAUSE]).items() if name != "revision"}
    common = {"clause": clause, "outcome": "pass", "checks": [], "runs": []}
    return {
        **document,
        "schema_version": 2,
        "suite": {"version": "0.1"},
        "clauses": {clause: texts},
        "verdicts": [common | verdict for verdict in verdicts],
    }


def read_2(clause: str, *verdicts: dict[str, Any]) -> Record:
    return from_json(json.dumps(version_2(clause, *verdicts)).encode())


@pytest.mark.parametrize(
    ("test", "case", "now"),
    [
        ("conformance/suites/test_x.py::test_y[a/b::c]", "test_y[a/b::c]", "a.b/test_y[a/b::c]"),
        ("session::every test", "every test", "a.b/every test"),
        ("expectations/torch/expectations.toml::a.b", "", "a.b/expectation: expectations/torch/expectations.toml"),
        ("scenario::sincos[mixed float16]", "mixed float16", "a.b/mixed float16"),
        ("of somebody else", "", "a.b/of somebody else"),
    ],
)
def test_a_test_of_version_2_is_called_by_its_clause(test: str, case: str, now: str) -> None:
    (verdict,) = read_2("a.b", {"test": test, "case": case, "code_hash": "h"}).verdicts
    assert (verdict.test, verdict.setup_hash) == (now, "h" if test.startswith("scenario") else "")


@pytest.mark.parametrize(
    ("clause", "hashes", "revision"),
    [
        ("scaling.automaton", ["any"], 1),
        ("composition.coverage", ["8223b38a475ecea8"], 1),
        ("composition.coverage", ["94f29a2ffffe7565"], 2),
        ("composition.coverage", ["of another day"], 0),
        ("composition.pairs", ["f303d35392855682", "0b4c3b7fe9e5562c"], 1),
        ("composition.pairs", ["f303d35392855682", "672b0ea4356d0f6f"], 0),
    ],
)
def test_the_revision_of_a_version_2_record_follows_from_its_hashes(
    clause: str, hashes: list[str], revision: int
) -> None:
    record = read_2(clause, *({"test": f"f.py::test_{n}", "code_hash": each} for n, each in enumerate(hashes)))
    assert record.clauses[clause].revision == revision


def test_runs_of_version_2_name_no_folder() -> None:
    offloads = [{"offload": {"kind": "Offload", "folder": f"/place/{n}", "to": "disk", "what": []}} for n in range(3)]
    runs = [{"fixture": "a", "recipe": recipe} for recipe in (*offloads, {"offload": {"folder": None}}, {})]
    (verdict,) = read_2("a.b", {"test": "f.py::test", "runs": runs}).verdicts
    assert [run.recipe.get("offload", {}).get("folder") for run in verdict.runs] == ["FOLDER", None, None]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("outcome", "message", "said"),
    [
        ("unsupported", "optimizer.clip: this adapter does not offer it (nothing to try)", "not offered"),
        ("unsupported", "accumulation.partial-window: there is no flush", "not offered"),
        ("unsupported", "optimizer.clip: there is no clipping (tried)", "unsupported"),
        ("fail", "it is off by 2 (nothing to try)", "fail"),
    ],
)
def test_a_refusal_of_version_2_says_whether_anything_was_tried(outcome: str, message: str, said: str) -> None:
    (verdict,) = read_2("a.b", {"test": "f.py::test", "outcome": outcome, "message": message}).verdicts
    assert verdict.outcome.value == said


@pytest.mark.parametrize("broken", [{"test": 3}, {"clause": ["a"]}, {"runs": 3}, {"runs": [3]}, {"code_hash": {}}])
def test_what_is_no_record_of_version_2_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no record of version 2|Expected|is not of clause"):
        read_2("a.b", {"test": "f.py::test", "code_hash": "h", **broken})
