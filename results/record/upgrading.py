"""Records of earlier suites as ones of the present suite: versions of the schema, and renamed tests (`renames.toml`).

Version 1 had observations, measurements, traces and tensors in objects by a name that clause, key and case were glued
into ("CLAUSE/KEY/CASE", "KEY/CASE"), and some measured and expected numbers as their text.

Version 2 called a test by its file and name ("conformance/suites/test_x.py::test_y[1]"), with a hash of its code in the
place of the clause's revision. `revisions.toml` has the hashes of clauses whose meaning has changed since.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from results.record.model import Record, RunSetup
from results.record.values import Json, as_number

_PLAIN = re.compile(r"/(test_\w+)\Z")
_WITH_CASE = re.compile(r"/(test_\w+\[.*\])\Z", re.DOTALL)
"""Takes linear time where the name ends in "]"; it is not used for other names."""

_TRIED = "(tried)"
"""Suffix of the message of a refusal if a call of the framework was tried; older suites tried nothing."""

_REVISIONS = Path(__file__).with_name("revisions.toml")
FILE = Path(__file__).with_name("renames.toml")

Names = Mapping[str, Mapping[str, str]]
"""New names of test functions by clause and old name."""


def upgrade(document: dict[str, Any]) -> dict[str, Any]:
    """The document of version 3 of a record of version 1 or 2, which stays as it is.

    Raises:
        ValueError: it is no record of its version.
    """
    version = document["schema_version"]
    try:
        return _from_2(_from_1(document) if version == 1 else document)
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"no record of version {version}: its parts are not those of that version") from None


def _from_2(document: dict[str, Any]) -> dict[str, Any]:
    hashes: dict[str, set[str]] = {}
    for verdict in document["verdicts"]:
        hashes.setdefault(verdict["clause"], set()).add(verdict.get("code_hash", ""))
    clauses = {
        name: {**text, "revision": _revision(name, hashes.get(name, set()))}
        for name, text in document["clauses"].items()
    }
    verdicts = sorted(
        map(_by_clause, map(_not_offered, document["verdicts"])), key=lambda verdict: str(verdict["test"])
    )
    return {**document, "schema_version": 3, "clauses": clauses, "verdicts": verdicts}


def _by_clause(verdict: dict[str, Any]) -> dict[str, Any]:
    """A verdict of version 2 whose test is named by its clause."""
    fields = {name: value for name, value in verdict.items() if name not in ("case", "code_hash")}
    place, _, name = verdict["test"].partition("::")
    if place == "scenario":
        fields["setup_hash"], name = verdict.get("code_hash", ""), verdict["case"]
    elif place.startswith("expectations/"):
        name = f"expectation: {place}"
    return {**fields, "test": f"{verdict['clause']}/{name or place}", "runs": _runs(verdict.get("runs", []))}


def _runs(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Distinct runs without the paths of their offloaded files."""
    distinct: list[dict[str, Any]] = []
    for run in runs:
        offload = run.get("recipe", {}).get("offload")
        if offload is not None and offload["folder"] is not None:
            run = {**run, "recipe": {**run["recipe"], "offload": {**offload, "folder": "FOLDER"}}}
        if run not in distinct:
            distinct.append(run)
    return distinct


def _revision(clause: str, hashes: set[str]) -> int:
    """The revision of a clause that tests of these code hashes judged; 0 if unknown."""
    known = _revisions().get(clause)
    if known is None:
        return 1
    revisions = {known.get(each, 0) for each in hashes}
    return revisions.pop() if len(revisions) == 1 else 0


@cache
def _revisions() -> Mapping[str, Mapping[str, int]]:
    """Revisions by code hash, of the clauses that have had more than one."""
    return tomllib.loads(_REVISIONS.read_text("utf-8"))


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    return {
        **document,
        "schema_version": 2,
        "verdicts": [{**each, "checks": [_check(check) for check in each["checks"]]} for each in document["verdicts"]],
        "observations": _sorted(_observation(*item) for item in document["observations"].items()),
        "measurements": _sorted({**_place(name), **each} for name, each in document["measurements"].items()),
        "traces": _sorted({**_place(name), "curves": each} for name, each in document["traces"].items()),
        "tensors": _sorted({**_place(name), "arrays": each} for name, each in document.get("tensors", {}).items()),
    }


def _check(check: dict[str, Any]) -> dict[str, Any]:
    texts = {name: check[name] for name in ("measured", "expected") if isinstance(check.get(name), str)}
    return {**check, **{name: as_number(text) for name, text in texts.items() if text not in ("inf", "-inf", "nan")}}


def _observation(name: str, value: Any) -> dict[str, Any]:
    clause, _, rest = name.partition("/")
    return {"clause": clause, **_place(rest), "value": value}


def _place(name: str) -> dict[str, str]:
    """The key and the case of a glued name: a test's at its end, else what follows the first "/", as of scenarios."""
    test = (_WITH_CASE if name.endswith("]") else _PLAIN).search(name)
    key, case = (name[: test.start()], test[1]) if test else name.partition("/")[::2]
    return {"key": key, "case": case} if key and case else {"key": name, "case": ""}


def _sorted(parts: Any) -> list[dict[str, Any]]:
    return sorted(parts, key=lambda part: (str(part.get("clause", "")), part["key"], part["case"]))


def _not_offered(verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict, `not offered` if it is a refusal without a tried call; versions 1 and 2 had only `unsupported`."""
    if verdict["outcome"] != "unsupported" or str(verdict.get("message", "")).endswith(_TRIED):
        return verdict
    return {**verdict, "outcome": "not offered"}


@cache
def renames(path: Path = FILE) -> Names:
    """The names in a file.

    Raises:
        ValueError: an entry is no name, or is renamed itself.
    """
    table = tomllib.loads(path.read_text("utf-8"))
    for clause, names in table.items():
        for old, new in names.items():
            if not isinstance(new, str) or not new.isidentifier():
                raise ValueError(f"{path.name}: {clause}: {old} = {new!r}, not the name of a function")
            if new in names:
                raise ValueError(f"{path.name}: {clause}: {old} = {new!r}, which has another name now; write that one")
    return table


def present_case(clause: str, case: str, names: Names | None = None) -> str:
    """The case function[parameters] of a clause with the present name of its function."""
    function, bracket, parameters = case.partition("[")
    known = (renames() if names is None else names).get(clause, {})
    return f"{known.get(function, function)}{bracket}{parameters}"


def _with_present_classes(run: RunSetup) -> RunSetup:
    recipe = {name: {**value, "kind": "Qat"} if _is_qat(value) else value for name, value in run.recipe.items()}
    return RunSetup(run.fixture, recipe)


def _is_qat(value: object) -> TypeGuard[Mapping[str, Json]]:
    return isinstance(value, Mapping) and value.get("kind") == "Aware"


def with_present_names(record: Record, names: Names | None = None) -> Record:
    """The record with the present names of its tests and of the classes in its recipes; of two tests that get one name
    the later stays."""
    cases: dict[str, str] = {}
    verdicts, renamed = {}, False
    for one in record.verdicts:
        case = present_case(one.clause, one.case, names)
        if case != one.case:
            cases[one.case] = case
            one = replace(one, test=f"{one.clause}/{case}")
        if any(_is_qat(value) for run in one.runs for value in run.recipe.values()):
            one = replace(one, runs=tuple(map(_with_present_classes, one.runs)))
            renamed = True
        verdicts[one.test] = one
    if not cases:
        return replace(record, verdicts=tuple(verdicts.values())) if renamed else record

    def parts(each: tuple[Any, ...]) -> tuple[Any, ...]:
        made = (replace(one, case=cases[one.case]) if one.case in cases else one for one in each)
        return tuple({one.place: one for one in made}.values())

    return replace(record.with_parts(parts), verdicts=tuple(verdicts.values())).sorted()
