"""The environment and the notes of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results.record.reading import Record
from results.report.text import VALUE, clean, number
from results.show.clauses import total, unconfirmed

_NOTES = 50
_FACTS = 1000


def facts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The environment of every run, and how it was made."""
    result = [
        _fact("framework", (clean(record.series.framework) for record in records)),
        _fact("version", (clean(record.variant.framework_version) for record in records)),
        _fact("mode", (clean(record.series.mode) for record in records)),
        _fact("device", (_device(record) for record in records)),
        _fact("status", (record.status for record in records)),
        _fact("clauses", (str(total(record).clauses.total()) for record in records)),
        _fact("tests", (str(len(record.verdicts)) for record in records)),
        _fact("seed", (clean(str(record.seed), 40) for record in records)),
        _fact("selection", (clean(record.selection) or "all tests" for record in records)),
        _fact("started", (clean(record.started, 40) for record in records)),
        _fact("duration", (f"{number(round(record.duration_s, 1))} s" for record in records)),
        _fact("suite", (clean(record.suite.version) for record in records)),
        _fact("clauses without a test", (_untested(record) for record in records)),
    ]
    for name in sorted({name for record in records for name in record.variant.environment}):
        values = (record.variant.environment.get(name) for record in records)
        result.append(_fact(clean(name), (None if value is None else clean(value) for value in values)))
    return result


def _fact(name: str, cells: Iterable[str | None]) -> dict[str, Any]:
    """A property of every run, None where a run does not record it, and whether two runs record different values."""
    cells = tuple(cells)
    return {"name": name, "cells": cells, "differs": len({*cells} - {None}) > 1}


def folds(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Packages, variables and instruction sets, where a record has any: folded facts, those that differ first."""
    packages = [record.variant.packages for record in records]
    variables = [record.variant.variables for record in records]
    sets = [dict.fromkeys(record.variant.instruction_sets, "yes") for record in records]
    parts = (
        ("Packages", packages, "not installed"),
        ("Environment variables", variables, "not set"),
        ("Instruction sets of the processor", sets, "no"),
    )
    return [_fold(title, values, absent) for title, values, absent in parts if any(values)]


def _fold(title: str, values: Sequence[Mapping[str, str]], absent: str) -> dict[str, Any]:
    """One fact for each name: `absent` where a run lacks it, None for a run without any names."""
    facts = [
        _fact(clean(name), ((clean(each[name]) if name in each else absent) if each else None for each in values))
        for name in sorted({name for each in values for name in each})
    ]
    facts.sort(key=lambda fact: not fact["differs"])
    shown = facts[:_FACTS]
    differing = sum(fact["differs"] for fact in shown)
    return {"title": title, "facts": shown, "left": len(facts) - len(shown), "differing": differing}


def identity(record: Record) -> list[list[str]]:
    """The facts about a run in an issue: names and values."""
    series, variant = record.series, record.variant
    facts = {
        "framework": f"{series.framework} {variant.framework_version}",
        "mode": series.mode,
        "device": _device(record),
        **{name: variant.environment[name] for name in sorted(variant.environment)[:_FACTS]},
        **{name: variant.variables[name] for name in sorted(variant.variables)[:_FACTS]},
        "instruction sets": ", ".join(variant.instruction_sets),
        "suite": record.suite.version,
        "seed": str(record.seed)[:40],
        "started": record.started,
    }
    return [[clean(name), clean(value, VALUE)] for name, value in facts.items() if value]


def _device(record: Record) -> str:
    asked, kind = record.series.device, record.series.device_kind
    return clean(asked if kind in ("", asked) else f"{asked} ({kind})")


def _untested(record: Record) -> str:
    names = record.suite.clauses_without_tests
    return clean(f"{len(names)}: {', '.join(names[:20])}", VALUE) if names else "0"


def notes(record: Record) -> tuple[str, ...]:
    """The record's own notes and a note on unconfirmed failures."""
    return tuple(clean(note, VALUE) for note in (*unconfirmed(record), *record.notes[:_NOTES]))
