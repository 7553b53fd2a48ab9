"""The recorded samples: what a file holds, reading it and writing it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import files
from results.compare.ratio import Ratio, ratio

FOLDER = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Measured:
    """Times of one case in ticks; time i of one side was taken next to time i of the other."""

    case: str
    by_hand: tuple[int, ...]
    adapter: tuple[int, ...]

    @property
    def ratio(self) -> Ratio:
        """The adapter's time over that of the step written by hand."""
        return ratio(self.by_hand, self.adapter)


@dataclass(frozen=True)
class Overhead:
    """What was measured of one framework.

    Attributes:
        place: device and mode.
        machine: processor, cores and library versions.
        started: ISO 8601.
        tick_s: length of a tick in seconds.
    """

    framework: str
    version: str
    place: str
    machine: str
    started: str
    tick_s: float
    cases: tuple[Measured, ...]


def path(framework: str) -> Path:
    """Where a framework's samples are kept."""
    return FOLDER / f"{framework}.json"


def save(overhead: Overhead, file: Path) -> None:
    """Writes the samples, one case a line."""
    files.save(asdict(overhead), "cases", file)


def load(file: Path) -> Overhead:
    """Reads samples.

    Raises:
        ValueError: the file holds none.
        OSError: it cannot be read.
    """
    return files.load(file, _made, "holds no samples")


def _made(content: dict[str, Any]) -> Overhead:
    cases = tuple(
        Measured(case["case"], tuple(case["by_hand"]), tuple(case["adapter"])) for case in content.pop("cases")
    )
    return Overhead(**content, cases=cases)
