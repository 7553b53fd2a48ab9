"""The runs of a report: what a column is called, and which frameworks are judged against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.records import Record
from results.report.text import clean

ORACLE = "reference"
"""The framework that the others are measured against, where there are others."""

COLOURS = 8
"""How many colours the style sheet has for runs."""

_PART = 48


@dataclass(frozen=True)
class Run:
    """One record as a column."""

    index: int
    framework: str
    version: str
    where: str
    interrupted: bool

    @property
    def label(self) -> str:
        """All of it in one line."""
        return " ".join(filter(None, (self.framework, self.version, self.where)))

    @property
    def short(self) -> str:
        """What tells it from others where room is scarce."""
        return f"{self.framework} {self.where}".strip()[:_PART]

    @property
    def colour(self) -> int:
        """Its place in the palette."""
        return self.index % COLOURS


def runs(records: Sequence[Record]) -> tuple[Run, ...]:
    """The columns of these records, in their order."""
    return tuple(
        Run(
            index,
            clean(record.series.framework, _PART),
            clean(record.variant.framework_version, _PART),
            clean(f"{record.series.mode} {record.series.device}".strip(), _PART),
            record.status == "interrupted",
        )
        for index, record in enumerate(records)
    )


def judged(records: Sequence[Record]) -> frozenset[str]:
    """The frameworks that are set against each other: all but the oracle, unless fewer than two are left."""
    names = frozenset(record.series.framework for record in records)
    others = names - {ORACLE}
    return others if len(others) > 1 else names
