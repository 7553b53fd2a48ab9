"""The committed records of other versions, and which record each of them is compared with.

A record of `results/upgrades` is compared with the nearest one, on the way to the baseline of its series, that differs
from it in the framework alone or in the companions that the version names alone; where there is none, with the
baseline. So every upgrade is seen in steps, and what a companion did is kept apart from what the framework did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.version import Version

from conformance.runner.baselines import BASELINES
from results.compare.comparison import Comparison, compare
from results.compare.environment import labelled, public
from results.compare.pairing import Key, name, series
from results.record.files import RecordError
from results.record.folders import listed
from results.record.reading import Record, load

UPGRADES = BASELINES.parent / "upgrades"


def upgrades(folder: Path = UPGRADES, baselines: Path = BASELINES) -> tuple[Comparison, ...]:
    """Every record of a folder compared with its partner, the older version first.

    Raises:
        RecordError: a record cannot be read, or its series has no baseline.
    """
    records = [[load(path) for path in listed(each)] for each in (folder, baselines)]
    return tuple(_compared(old, new) for old, new in pairs(*records))


def _compared(old: Record, new: Record) -> Comparison:
    """The comparison; tests that a later suite added to the older version's record are left out."""
    if new.started < old.started:
        old = old.only({verdict.test for verdict in new.verdicts})
    return compare(old, new)


def pairs(others: Iterable[Record], baselines: Iterable[Record]) -> Iterator[tuple[Record, Record]]:
    """Each record with its partner, by series and then by version.

    Raises:
        RecordError: the series of a record has no baseline.
    """
    known = {series(record): record for record in baselines}
    found: dict[Key, list[Record]] = defaultdict(list)
    for record in others:
        found[series(record)].append(record)
    for key, records in sorted(found.items()):
        if key not in known:
            raise RecordError("results/upgrades", f"holds a record of {name(key)}", "accept a baseline of that first")
        line = sorted((*records, known[key]), key=_place)
        home = next(place for place, record in enumerate(line) if record is known[key])
        for place, record in enumerate(line):
            if place != home:
                yield _ordered(record, _partner(record, _way(line, place, home)))


def _way(line: Sequence[Record], place: int, home: int) -> Sequence[Record]:
    """The records between one and the baseline, that one last."""
    return line[place + 1 : home + 1] if place < home else line[home:place][::-1]


def _partner(record: Record, way: Sequence[Record]) -> Record:
    return next((other for other in way if _one_thing_differs(record, other)), way[-1])


def _one_thing_differs(one: Record, other: Record) -> bool:
    return (public(one) != public(other)) != (labelled(one) != labelled(other))


def _ordered(one: Record, other: Record) -> tuple[Record, Record]:
    return (one, other) if _place(one) < _place(other) else (other, one)


def _place(record: Record) -> tuple[Version, list[tuple[str, Version]]]:
    companions = labelled(record)
    return Version(public(record)), [(package, Version(companions[package])) for package in sorted(companions)]
