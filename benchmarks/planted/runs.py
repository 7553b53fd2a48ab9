"""Runs of the cost suites, each in a process of its own, and what a comparison of two of them tells."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kit.processes import failed, python
from benchmarks.planted.plants import VARIABLE, possible
from results.compare.comparison import Change, ChangeKind, compare
from results.record.reading import Record, load

SUITES = ("conformance/suites/test_cost.py", "conformance/suites/test_cost_overhead.py")
EXPECTED = {
    "slow": (ChangeKind.NOT_JUDGED, "cost.adapter-overhead"),
    "copy": (ChangeKind.MEASURE_WORSE, "cost.bytes-repeat"),
}
"""The clause whose measurements grow by each planted cost, and what a comparison of two records can say of it."""


@dataclass(frozen=True)
class PlantedOutcome:
    """What a comparison of two runs told.

    Attributes:
        planted: the cost that the newer one had, "" for none.
        changes: what differed, one line each.
        right: whether that is all that two records can say of what was planted: bytes are told, times are not judged.
    """

    planted: str
    changes: tuple[str, ...]
    right: bool


def compared(framework: str, device: str, mode: str, repeats: int) -> Iterator[tuple[Record, PlantedOutcome]]:
    """Runs the suites, again `repeats` times, and with each plant, and compares each run with the one before.

    Raises:
        RunError: a run made no record.
    """
    with tempfile.TemporaryDirectory() as folder:
        before = _run(framework, device, mode, "", Path(folder) / "first.json")
        for number in range(repeats):
            after = _run(framework, device, mode, "", Path(folder) / f"{number}.json")
            yield after, told(before, after, "")
            before = after
        for plant in possible(framework):
            after = _run(framework, device, mode, plant, Path(folder) / f"{plant}.json")
            yield after, told(before, after, plant)


def told(before: Record, after: Record, planted: str) -> PlantedOutcome:
    """What differs between a run and one that a cost may have been planted in."""
    comparison = compare(before, after)
    changes = comparison.changes
    if planted:
        kind, clause = EXPECTED[planted]
        right = any((c.kind, c.clause) == (kind, clause) for c in changes) and (kind.worse or not _worse(changes))
    else:
        right = all(c.kind is ChangeKind.NOT_JUDGED for c in changes) and comparison.compared > 0
    return PlantedOutcome(planted, tuple(_line(change) for change in changes), right)


def _worse(changes: Sequence[Change]) -> bool:
    return any(change.kind.worse for change in changes)


def _line(change: Change) -> str:
    told = f"{change.kind}: {change.clause}, {change.subject}: {change.old} → {change.new}"
    return f"{told} ({change.detail})" if change.detail and change.kind is not ChangeKind.NOT_JUDGED else told


def _run(framework: str, device: str, mode: str, plant: str, file: Path) -> Record:
    chosen = [f"--framework={framework}", f"--device={device}", *([f"--mode={mode}"] if mode else [])]
    plugin = ["-p", "benchmarks.planted.plants"] if plant else []
    ended = python("-m", "pytest", "-q", *plugin, *chosen, f"--record={file}", *SUITES, more={VARIABLE: plant})
    if not file.exists():
        raise failed(ended)
    return load(file)
