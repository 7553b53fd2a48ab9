"""The recorded costs of commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.kit.samples import Origin, Store


@dataclass(frozen=True)
class CommandRuns:
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
class SuiteCost(Origin):
    """What was measured of one framework; `selection` is pytest's -k, "" for all tests."""

    selection: str
    runs: tuple[CommandRuns, ...]

    def of(self, what: str) -> CommandRuns:
        """The run of that name.

        Raises:
            ValueError: there is none.
        """
        for run in self.runs:
            if run.what == what:
                return run
        raise ValueError(f"{self.framework}: no run is of {what!r}")


STORE = Store(Path(__file__).parent / "samples", SuiteCost, "runs")
