"""Changes of the suite itself between two records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from results.record.reading import Record

_DIGITS = 12


@dataclass(frozen=True)
class SuiteChange:
    """Differences between the suites that wrote two records.

    Attributes:
        areas: areas whose files differ, such as "judging", in alphabetical order.
        unknown: whether one of the records does not name the areas of its suite.
        version, commit: both values where they differ, else "".
    """

    areas: tuple[str, ...] = ()
    unknown: bool = False
    version: str = ""
    commit: str = ""

    @property
    def changed(self) -> bool:
        """Whether the suites are known to differ in more than their commit."""
        return bool(self.areas or self.version)

    @property
    def asks_the_same(self) -> bool:
        """Whether the two suites are known to have the same clauses and tests."""
        return not (self.unknown or {"specification", "judging"} & {*self.areas})

    def lines(self) -> Iterator[str]:
        """One line for each difference, the areas first."""
        if self.areas:
            yield f"the suite differs: {', '.join(self.areas)}"
        if self.unknown:
            yield "the suite may differ: an older record does not name the areas of its suite"
        if self.version:
            yield f"suite version: {self.version}"
        if self.commit and (self.changed or self.unknown):
            yield f"suite commit: {self.commit}"


def suite_change(old: Record, new: Record) -> SuiteChange:
    """The differences between the suites of two records."""
    before, after = old.suite, new.suite
    known = bool(before.areas and after.areas)
    names = sorted(before.areas.keys() | after.areas.keys()) if known else []
    return SuiteChange(
        tuple(name for name in names if before.areas.get(name) != after.areas.get(name)),
        not known,
        _step(before.version, after.version),
        _step(_short(before.commit), _short(after.commit)),
    )


def _short(commit: str) -> str:
    return f"{commit[:_DIGITS]}{'+' if commit.endswith('+') else ''}"


def _step(old: str, new: str) -> str:
    return f"{old or 'unknown'} → {new or 'unknown'}" if old != new else ""
