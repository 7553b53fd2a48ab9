"""Two sets of records, compared pair by pair, and the overall result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from results.compare.comparison import Comparison, compare
from results.record.encoding import without_collecting
from results.record.files import RecordError
from results.record.outline import heading
from results.record.reading import Record, load, load_series

Key = tuple[str, str, str]
"""Framework, kind of device and mode: equal for records that are compared."""


FailOn = Literal["worse", "drift", "never"]
"""What a comparison fails on: regressions; regressions and drifts; or nothing. Refused comparisons always fail."""


@dataclass(frozen=True)
class Comparisons:
    """Every pair of records of one series, and the series on only one side."""

    pairs: tuple[Comparison, ...]
    unmatched: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """0: no regressions; 1: regressions; 2: a pair cannot be compared, or a record has no partner."""
        statuses = {pair.status for pair in self.pairs}
        if 1 in statuses:
            return 1
        return 2 if 2 in statuses or self.unmatched or not statuses else 0

    def exit_status(self, fail_on: FailOn) -> int:
        """0, or 1 if there is what the command fails on; 2 if the comparison is incomplete."""
        unreliable = any(pair.status == 2 for pair in self.pairs) or bool(self.unmatched) or not self.pairs
        if fail_on == "never":
            return 2 if unreliable else 0
        if fail_on == "drift" and any(pair.drifted for pair in self.pairs):
            return 1
        return self.status


NONE = Comparisons(())
"""Nothing was compared."""


def compare_sets(old: Sequence[Record], new: Sequence[Record]) -> Comparisons:
    """Compares one record with one, whatever they are; of larger sets those of the same series.

    Raises:
        RecordError: a set holds two records of a series.
    """
    if len(old) == len(new) == 1:
        return Comparisons((compare(old[0], new[0]),))
    before, after = _by_series(old, "old"), _by_series(new, "new")
    pairs = tuple(compare(before[key], after[key]) for key in sorted(before.keys() & after.keys()))
    return Comparisons(
        pairs,
        tuple(
            f"{name(key)}: only among the {'old' if key in before else 'new'} records"
            for key in sorted(before.keys() ^ after.keys())
        ),
    )


def compare_files(old: Sequence[Path], new: Sequence[Path], partial: bool = False) -> Comparisons:
    """The same of files, of which only two are in memory at a time.

    Args:
        partial: `new` is a part: what only `old` has a record of is left out.

    Raises:
        RecordError: one cannot be read, or a set has two records of a series.
    """
    with without_collecting():
        return _compared(_keyed(old), _keyed(new), partial)


def _compared(before: list[tuple[Key, Path]], after: list[tuple[Key, Path]], partial: bool) -> Comparisons:
    """The comparisons of files by their series."""
    if partial:
        wanted = {key for key, _ in after}
        before = [(key, path) for key, path in before if key in wanted]
    if len(before) == len(after) == 1:
        return Comparisons((compare(load(before[0][1]), load(after[0][1])),))
    sides = _placed(before, "old"), _placed(after, "new")
    pairs = []
    for key in sorted(sides[0].keys() & sides[1].keys()):
        pair = compare(load(sides[0][key]), load(sides[1][key]))
        pairs.append(replace(pair, old=heading(pair.old), new=heading(pair.new)))
    unmatched = []
    for key in sorted(sides[0].keys() ^ sides[1].keys()):
        side = "old" if key in sides[0] else "new"
        load(sides[side == "new"][key])
        unmatched.append(f"{name(key)}: only among the {side} records")
    return Comparisons(tuple(pairs), tuple(unmatched))


def _keyed(paths: Sequence[Path]) -> list[tuple[Key, Path]]:
    return [(series_of(path), path) for path in paths]


def _placed(keyed: Sequence[tuple[Key, Path]], side: str) -> dict[Key, Path]:
    placed: dict[Key, Path] = {}
    for key, path in keyed:
        if key in placed:
            versions = " and ".join(load(each).variant.framework_version for each in (placed[key], path))
            raise RecordError(
                f"the {side} records", f"include two records of {name(key)} ({versions})", "name only one of them"
            )
        placed[key] = path
    return placed


def series_of(path: Path) -> Key:
    """The series of a file's record; the rest of the file is not checked.

    Raises:
        RecordError: it cannot be read.
    """
    one = load_series(path)
    return one.framework, one.device_kind, one.mode


def series(record: Record) -> Key:
    """The series of a record."""
    return record.series.framework, record.series.device_kind, record.series.mode


def name(key: Key) -> str:
    """A series in words."""
    framework, device, mode = key
    return " ".join(filter(None, (framework, mode, device)))


def _by_series(records: Sequence[Record], side: str) -> dict[Key, Record]:
    result: dict[Key, Record] = {}
    for record in records:
        key = series(record)
        if key in result:
            versions = f"{result[key].variant.framework_version} and {record.variant.framework_version}"
            raise RecordError(
                f"the {side} records", f"include two records of {name(key)} ({versions})", "name only one of them"
            )
        result[key] = record
    return result
