"""What the comparisons told: keeping it, and the page's block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import files
from benchmarks.planted.runs import Told
from benchmarks.processes import machine
from results.record.reading import Record

FOLDER = Path(__file__).parent / "found"
PLANTED = {"slow": "every update takes 10 % more time", "copy": "every layer's result is kept twice"}


@dataclass(frozen=True)
class Found:
    """What was told of one framework's runs.

    Attributes:
        place: device and mode.
        machine: processor, cores and library versions.
        started: when the first run but one began, ISO 8601.
        tests: how many tests a run had.
    """

    framework: str
    version: str
    place: str
    machine: str
    started: str
    tests: int
    told: tuple[Told, ...]


def collected(comparisons: Iterable[tuple[Record, Told]]) -> Found:
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
    return Found(series.framework, version, place, machine(), first.started, len(first.verdicts), tuple(all_told))


def save(found: Found) -> None:
    """Keeps what was told, a comparison a line."""
    files.save(asdict(found), "told", FOLDER / f"{found.framework}.json")


def load(file: Path) -> Found:
    """Reads what was kept.

    Raises:
        ValueError: the file holds none of it.
        OSError: it cannot be read.
    """
    return files.load(file, _made, "holds no comparisons")


def _made(content: dict[str, Any]) -> Found:
    told = tuple(Told(one["planted"], tuple(one["changes"]), one["right"]) for one in content.pop("told"))
    return Found(**content, told=told)


def block() -> str:
    """The table of everything that was kept.

    Raises:
        ValueError: a file holds none of it.
        OSError: it cannot be read.
    """
    return "\n".join(_lines([load(file) for file in sorted(FOLDER.glob("*.json"))]))


def _lines(found: list[Found]) -> Iterator[str]:
    yield f"| framework | equal runs, of which something was called worse or better | {' | '.join(PLANTED.values())} |"
    yield "|---|--:|---|---|"
    for one in found:
        equal = [told for told in one.told if not told.planted]
        alarms = sum(not told.right for told in equal)
        cells = [f"{one.framework} {one.version}, {one.place}", f"{alarms} of {len(equal)}"]
        cells += ["<br>".join(_planted(one, plant)) for plant in PLANTED]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for one in found:
        yield f"- {one.framework}: {one.started}; {one.machine}; {one.tests} tests a run."


def _planted(found: Found, plant: str) -> Iterator[str]:
    for told in found.told:
        if told.planted == plant:
            counts = Counter(change.partition(",")[0] for change in told.changes)
            yield from (f"{what} ({count})" for what, count in counts.items()) if counts else ("no change",)
