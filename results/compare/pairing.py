"""Two sets of records: which are compared with which, and what the whole comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from results.compare.comparison import Comparison, compare
from results.record.files import RecordError
from results.record.reading import Record

Key = tuple[str, str, str]
"""Framework, kind of device and mode: what has to be the same."""


FailOn = Literal["worse", "drift", "never"]
"""What a comparison fails on: what is worse; that, and numbers that drifted; or nothing but what cannot be compared."""


@dataclass(frozen=True)
class Comparisons:
    """Every pair of records of one series, and the series that only one side has."""

    pairs: tuple[Comparison, ...]
    unmatched: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """0: nothing is worse; 1: something is; 2: a pair could not be compared, or a record has no partner."""
        statuses = {pair.status for pair in self.pairs}
        if 1 in statuses:
            return 1
        return 2 if 2 in statuses or self.unmatched or not statuses else 0

    def exit_status(self, fail_on: FailOn) -> int:
        """0, or 1 if it holds what a command is to fail on; 2 if that cannot be said."""
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


def series(record: Record) -> Key:
    """What has to be the same in records that are compared."""
    return record.series.framework, record.series.device_kind, record.series.mode


def name(key: Key) -> str:
    """A series in words."""
    framework, device, mode = key
    return " ".join(filter(None, (framework, mode, device)))


def _by_series(records: Sequence[Record], side: str) -> dict[Key, Record]:
    found: dict[Key, Record] = {}
    for record in records:
        key = series(record)
        if key in found:
            versions = f"{found[key].variant.framework_version} and {record.variant.framework_version}"
            raise RecordError(f"the {side} records", f"two of them are of {name(key)} ({versions})", "name one of them")
        found[key] = record
    return found
