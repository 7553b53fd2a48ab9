"""Two sets of records, compared pair by pair, and the overall result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from results.compare.comparison import Comparison, compare
from results.record.encoding import without_collecting
from results.record.files import RecordError
from results.record.folders import heading
from results.record.reading import Record, Series, load, load_series

Key = tuple[str, str, str]
"""Framework, kind of device and mode: equal for records that are compared."""

_Source = TypeVar("_Source", Record, Path)

FailOn = Literal["worse", "drift", "never"]
"""What a comparison fails on: regressions; regressions and drifts; or nothing. Refused comparisons always fail."""


@dataclass(frozen=True)
class Comparisons:
    """Every pair of records of one series, and the series on only one side."""

    pairs: tuple[Comparison, ...]
    unmatched: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """0: nothing is worse; 1: regressions; 2: a pair cannot be compared, or a record has no partner."""
        if any(pair.status == 1 for pair in self.pairs):
            return 1
        return 2 if self._unreliable else 0

    def exit_status(self, fail_on: FailOn) -> int:
        """0, or 1 if there is what the command fails on; 2 if the comparison is incomplete."""
        if fail_on == "never":
            return 2 if self._unreliable else 0
        if fail_on == "drift" and any(pair.drifted for pair in self.pairs):
            return 1
        return self.status

    @property
    def _unreliable(self) -> bool:
        return any(pair.status == 2 for pair in self.pairs) or bool(self.unmatched) or not self.pairs


NONE = Comparisons(())
"""Nothing was compared."""


def compare_sets(old: Sequence[Record], new: Sequence[Record]) -> Comparisons:
    """Compares one record with one, whatever they are; of larger sets those of the same series.

    Raises:
        RecordError: a set holds two records of a series.
    """
    before, after = ([(series(record), record) for record in side] for side in (old, new))
    return _compared(before, after, lambda record: record)


def compare_files(old: Sequence[Path], new: Sequence[Path], partial: bool = False) -> Comparisons:
    """The same of files, of which only two are in memory at a time.

    Args:
        partial: `new` is a part: what only `old` has a record of is left out.

    Raises:
        RecordError: one cannot be read, or a set has two records of a series.
    """
    with without_collecting():
        before, after = ([(_key(load_series(path)), path) for path in side] for side in (old, new))
        if partial:
            wanted = {key for key, _ in after}
            before = [(key, path) for key, path in before if key in wanted]
        return _compared(before, after, load)


def _compared(
    before: Sequence[tuple[Key, _Source]], after: Sequence[tuple[Key, _Source]], opened: Callable[[_Source], Record]
) -> Comparisons:
    """The comparisons of records by their series, with headings in the place of the records."""
    if len(before) == len(after) == 1:
        return Comparisons((_pair(opened(before[0][1]), opened(after[0][1])),))
    old, new = _placed(before, "old", opened), _placed(after, "new", opened)
    pairs = tuple(_pair(opened(old[key]), opened(new[key])) for key in sorted(old.keys() & new.keys()))
    unmatched = []
    for key in sorted(old.keys() ^ new.keys()):
        name_of_side, side = ("old", old) if key in old else ("new", new)
        opened(side[key])  # a record that cannot be read is an error without a partner too
        unmatched.append(f"{name(key)}: only among the {name_of_side} records")
    return Comparisons(pairs, tuple(unmatched))


def _pair(old: Record, new: Record) -> Comparison:
    pair = compare(old, new)
    return replace(pair, old=heading(pair.old), new=heading(pair.new))


def _placed(keyed: Sequence[tuple[Key, _Source]], side: str, opened: Callable[[_Source], Record]) -> dict[Key, _Source]:
    placed: dict[Key, _Source] = {}
    for key, source in keyed:
        if key in placed:
            versions = " and ".join(opened(each).variant.framework_version for each in (placed[key], source))
            raise RecordError(
                f"the {side} records", f"include two records of {name(key)} ({versions})", "name only one of them"
            )
        placed[key] = source
    return placed


def series(record: Record) -> Key:
    """The series of a record."""
    return _key(record.series)


def _key(one: Series) -> Key:
    return one.framework, one.device_kind, one.mode


def name(key: Key) -> str:
    """A series in words."""
    framework, device, mode = key
    return " ".join(filter(None, (framework, mode, device)))
