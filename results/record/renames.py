"""Renamed tests (`renames.toml`), so that records before and after a rename can be compared."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from results.record.model import Record, RunSetup
from results.record.values import Json

FILE = Path(__file__).with_suffix(".toml")

Names = Mapping[str, Mapping[str, str]]
"""New names of test functions by clause and old name."""


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
