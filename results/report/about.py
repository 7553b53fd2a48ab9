"""What is said about the runs themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.records import Record
from results.report.text import VALUE, clean, number

_NOTES = 50


@dataclass(frozen=True)
class Fact:
    """A property of every run; None where a run does not tell it."""

    name: str
    values: tuple[str | None, ...]


def facts(records: Sequence[Record]) -> tuple[Fact, ...]:
    """The environment of every run, and how it was made."""
    found = [
        Fact("framework", tuple(clean(record.series.framework) for record in records)),
        Fact("version", tuple(clean(record.variant.framework_version) for record in records)),
        Fact("mode", tuple(clean(record.series.mode) for record in records)),
        Fact("device", tuple(_device(record) for record in records)),
        Fact("status", tuple(record.status for record in records)),
        Fact("tests", tuple(str(len(record.verdicts)) for record in records)),
        Fact("seed", tuple(clean(str(record.seed), 40) for record in records)),
        Fact("selection", tuple(clean(record.selection) or "all tests" for record in records)),
        Fact("started", tuple(clean(record.started, 40) for record in records)),
        Fact("duration", tuple(f"{number(round(record.duration_s, 1))} s" for record in records)),
        Fact("suite", tuple(clean(record.suite.version) for record in records)),
        Fact("clauses without a test", tuple(_untested(record) for record in records)),
    ]
    names = dict.fromkeys(name for record in records for name in sorted(record.variant.environment))
    for name in sorted(names):
        values = (record.variant.environment.get(name) for record in records)
        found.append(Fact(clean(name), tuple(None if value is None else clean(value) for value in values)))
    return tuple(found)


def _device(record: Record) -> str:
    asked, kind = record.series.device, record.series.device_kind
    return clean(asked if kind in ("", asked) else f"{asked} ({kind})")


def _untested(record: Record) -> str:
    names = record.suite.clauses_without_tests
    return clean(f"{len(names)}: {', '.join(names[:20])}", VALUE) if names else "0"


def notes(record: Record) -> tuple[str, ...]:
    """What the record says about itself."""
    return tuple(clean(note, VALUE) for note in record.notes[:_NOTES])
