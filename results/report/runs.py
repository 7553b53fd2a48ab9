"""The runs of a report: names of columns, columns by framework, and the frameworks that are compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from results.record.model import Status
from results.record.reading import Record
from results.report.text import clean
from results.show.portability import ORACLE

COLOURS = 8
"""How many colours the style sheet has for runs."""

DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3), (10, 4), (4, 2), (1, 3), (12, 3, 3, 3))
"""Dashes of the lines of each colour, so that lines differ without colour."""

SHAPES = {
    "circle": "M9 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "square": "M9.5 2.5h7v7h-7Z",
    "triangle-up": "M13 1.5L17.5 10h-9Z",
    "diamond": "M13 .8L17 6L13 11.2L9 6Z",
    "cross": "M11.5 2h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5Z",
    "triangle-down": "M13 10.5L17.5 2h-9Z",
    "triangle-right": "M17 6L9 1.5v9Z",
    "triangle-left": "M9 6L17 1.5v9Z",
}
"""The marks of each colour by Vega's names, as paths for the keys next to the drawings."""

_PART = 48
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")


@dataclass(frozen=True)
class RunColumn:
    """One record as a column.

    Attributes:
        where: mode and device; also the start time if nothing else distinguishes two runs.
        short: a short name.
        slug: its name in addresses: framework and mode, and more only where these are not unique.
    """

    index: int
    framework: str
    version: str
    where: str
    status: Status
    short: str = ""
    slug: str = ""

    @property
    def label(self) -> str:
        """Framework, version, mode and device in one line."""
        return " ".join(filter(None, (self.framework, self.version, self.where)))

    @property
    def packages(self) -> list[str]:
        """The version in pieces between which a line may break: one for each package."""
        return packages(self.version)

    @property
    def colour(self) -> int:
        """Its place in the palette."""
        return self.index % COLOURS


@dataclass(frozen=True)
class FrameworkColumns:
    """The neighbouring columns of one framework; `slug` is its name in addresses."""

    name: str
    slug: str
    runs: tuple[int, ...]


def by_framework(records: Iterable[Record]) -> list[Record]:
    """These records with those of a framework next to each other, else in their order."""
    together: dict[str, list[Record]] = {}
    for record in records:
        together.setdefault(record.series.framework, []).append(record)
    return [record for members in together.values() for record in members]


def frameworks(records: Sequence[Record]) -> tuple[FrameworkColumns, ...]:
    """The columns of each framework, where `records` are in the order of `by_framework`."""
    places: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        places.setdefault(record.series.framework, []).append(place)
    result = [
        FrameworkColumns(clean(name, _PART), _UNSAFE.sub("_", name[:_PART]), tuple(runs))
        for name, runs in places.items()
    ]
    return tuple(_apart(result, "slug", lambda group: replace(group, slug=f"~{group.runs[0] + 1}")))


def packages(version: str) -> list[str]:
    """A version in pieces, one for each package."""
    return re.split(r"(?<=[+.])(?=[A-Za-z])", version)


def runs(records: Sequence[Record]) -> tuple[RunColumn, ...]:
    """The columns of these records, in their order, with unique names."""
    result = [
        RunColumn(
            index=index,
            framework=clean(record.series.framework, _PART),
            version=clean(record.variant.framework_version, _PART),
            where=clean(f"{record.series.mode} {record.series.device}".strip(), _PART),
            status=record.status,
        )
        for index, record in enumerate(records)
    ]
    starts = [clean(record.started, _PART) for record in records]
    result = _apart(result, "label", lambda run: replace(run, where=f"{run.where}, {starts[run.index]}"))
    result = _apart(result, "label", lambda run: replace(run, where=f"{run.where} ({run.index + 1})"))
    result = [replace(run, short=f"{run.framework} {run.where}".strip()[:_PART]) for run in result]
    result = _apart(result, "short", lambda run: replace(run, short=f"{run.index + 1}: {run.short}"))
    return tuple(_addressed(result, records))


def _addressed(columns: Sequence[RunColumn], records: Sequence[Record]) -> list[RunColumn]:
    """These runs with slugs: framework and mode, then device, then version, then a number for those that share all."""

    def parts(run: RunColumn) -> tuple[str, ...]:
        series = records[run.index].series
        words = (series.framework, series.mode, series.device, records[run.index].variant.framework_version)
        return tuple(_UNSAFE.sub("_", word[:_PART]) for word in words)

    named = [replace(run, slug="-".join(parts(run)[:2])) for run in columns]
    named = _apart(named, "slug", lambda run: replace(run, slug="-".join(parts(run)[:3])))
    named = _apart(named, "slug", lambda run: replace(run, slug="-".join(parts(run))))
    return _apart(named, "slug", lambda run: replace(run, slug=f"~{run.index + 1}"))


_Named = TypeVar("_Named", RunColumn, FrameworkColumns)


def _apart(columns: Sequence[_Named], name: str, renamed: Callable[[_Named], _Named]) -> list[_Named]:
    """These columns, renamed where another one has the same name."""
    counts = Counter(getattr(column, name) for column in columns)
    return [renamed(column) if counts[getattr(column, name)] > 1 else column for column in columns]


def judged(records: Sequence[Record]) -> frozenset[str]:
    """The frameworks that are compared: all but the oracle, unless fewer than two are left."""
    names = frozenset(record.series.framework for record in records)
    others = names - {ORACLE}
    return others if len(others) > 1 else names
