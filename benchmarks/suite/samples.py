"""The recorded costs: what a file holds, reading it and writing it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import files

FOLDER = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Run:
    """One command, as often as it was run.

    Attributes:
        what: "help", "import", "collection", "first test", "two workers", or the share of the clauses, such as "0.25".
        wall_s: seconds that passed, one a run.
        cpu_s: seconds of processors, all processes together, one a run.
        clauses, tests: how many were judged; 0 where none were.
    """

    what: str
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]
    clauses: int = 0
    tests: int = 0


@dataclass(frozen=True)
class Cost:
    """What was measured of one framework.

    Attributes:
        place: device and mode.
        selection: pytest's -k, "" for all tests.
        machine: processor, cores and library versions.
        started: ISO 8601.
    """

    framework: str
    version: str
    place: str
    selection: str
    machine: str
    started: str
    runs: tuple[Run, ...]

    def of(self, what: str) -> Run:
        """The run of that name.

        Raises:
            ValueError: there is none.
        """
        for run in self.runs:
            if run.what == what:
                return run
        raise ValueError(f"{self.framework}: no run is of {what!r}")


def path(framework: str) -> Path:
    """Where a framework's costs are kept."""
    return FOLDER / f"{framework}.json"


def save(cost: Cost, file: Path) -> None:
    """Writes the costs, one command a line."""
    files.save(asdict(cost), "runs", file)


def load(file: Path) -> Cost:
    """Reads costs.

    Raises:
        ValueError: the file holds none.
        OSError: it cannot be read.
    """
    return files.load(file, _made, "holds no costs")


def _made(content: dict[str, Any]) -> Cost:
    runs = tuple(
        Run(**{**run, "wall_s": tuple(run["wall_s"]), "cpu_s": tuple(run["cpu_s"])}) for run in content.pop("runs")
    )
    return Cost(**content, runs=runs)
