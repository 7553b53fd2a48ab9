"""The environment and the notes of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.record.reading import Record
from results.report.text import VALUE, clean, number
from results.show.clauses import total, unconfirmed

_NOTES = 50
_FACTS = 1000


@dataclass(frozen=True)
class Fact:
    """A property of every run; None where a run does not record it."""

    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        """Whether two runs that record it record different values."""
        return len({value for value in self.values if value is not None}) > 1


@dataclass(frozen=True)
class Fold:
    """Folded properties, those that differ first; `left` more are left out."""

    title: str
    facts: tuple[Fact, ...]
    left: int

    @property
    def differing(self) -> int:
        """The number of properties in which runs differ."""
        return sum(fact.differs for fact in self.facts)


def facts(records: Sequence[Record]) -> tuple[Fact, ...]:
    """The environment of every run, and how it was made."""
    result = [
        Fact("framework", tuple(clean(record.series.framework) for record in records)),
        Fact("version", tuple(clean(record.variant.framework_version) for record in records)),
        Fact("mode", tuple(clean(record.series.mode) for record in records)),
        Fact("device", tuple(_device(record) for record in records)),
        Fact("status", tuple(record.status for record in records)),
        Fact("clauses", tuple(str(total(record).clauses.total()) for record in records)),
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
        result.append(Fact(clean(name), tuple(None if value is None else clean(value) for value in values)))
    return tuple(result)


def folds(records: Sequence[Record]) -> tuple[Fold, ...]:
    """Packages, variables and instruction sets, where a record has any."""
    packages = [record.variant.packages for record in records]
    variables = [record.variant.variables for record in records]
    sets = [dict.fromkeys(record.variant.instruction_sets, "yes") for record in records]
    parts = (
        ("Packages", packages, "not installed"),
        ("Environment variables", variables, "not set"),
        ("Instruction sets of the processor", sets, "no"),
    )
    return tuple(_fold(title, values, absent) for title, values, absent in parts if any(values))


def _fold(title: str, values: Sequence[Mapping[str, str]], absent: str) -> Fold:
    """One fact for each name: `absent` where a run lacks it, None for a run without any names."""
    names = sorted({name for each in values for name in each})
    facts = [
        Fact(clean(name), tuple((clean(each[name]) if name in each else absent) if each else None for each in values))
        for name in names
    ]
    facts.sort(key=lambda fact: not fact.differs)
    return Fold(title, tuple(facts[:_FACTS]), max(len(facts) - _FACTS, 0))


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
