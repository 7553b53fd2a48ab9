"""What the comparisons told: keeping it, and the page's block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kit.processes import machine
from benchmarks.kit.samples import Origin, Store
from benchmarks.planted.runs import PlantedOutcome
from results.record.reading import Record

PLANTED = {"slow": "every update takes 10 % more time", "copy": "every layer's result is kept twice"}


@dataclass(frozen=True)
class Planted(Origin):
    """What comparisons of one framework's runs said; `tests` is how many tests a run had."""

    tests: int
    told: tuple[PlantedOutcome, ...]


STORE = Store(Path(__file__).parent / "samples", Planted, "told")


def collected(comparisons: Iterable[tuple[Record, PlantedOutcome]]) -> Planted:
    """All that was told, said on standard output as it comes."""
    records, all_told = [], []
    for record, told in comparisons:
        print(f"{told.planted or 'nothing planted'}: {'; '.join(told.changes) or 'no change'}", flush=True)
        records.append(record)
        all_told.append(told)
    first = records[0]
    series = first.series
    place = f"{series.device} {series.mode}"
    version = first.variant.framework_version
    return Planted(series.framework, version, place, machine(), first.started, len(first.verdicts), tuple(all_told))


def blocks() -> Mapping[str, str]:
    """The table of everything that was kept.

    Raises:
        ValueError: a file holds none of it.
        OSError: it cannot be read.
    """
    return {"planted": "\n".join(_lines(STORE.all()))}


def _lines(samples: list[Planted]) -> Iterator[str]:
    yield f"| framework | equal runs, of which something was called worse or better | {' | '.join(PLANTED.values())} |"
    yield "|---|--:|---|---|"
    for one in samples:
        equal = [told for told in one.told if not told.planted]
        alarms = sum(not told.right for told in equal)
        cells = [one.label, f"{alarms} of {len(equal)}"]
        cells += ["<br>".join(_planted(one, plant)) for plant in PLANTED]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for one in samples:
        yield f"- {one.taken}; {one.tests} tests a run."


def _planted(planted: Planted, plant: str) -> Iterator[str]:
    for told in planted.told:
        if told.planted == plant:
            counts = Counter(change.partition(",")[0] for change in told.changes)
            yield from (f"{what} ({count})" for what, count in counts.items()) if counts else ("no change",)
