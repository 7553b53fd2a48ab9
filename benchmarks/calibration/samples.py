"""The recorded samples: what a file holds, reading it and writing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import files

FOLDER = Path(__file__).parent / "samples"

"""Times are kept as whole numbers of this many nanoseconds."""

Times = NDArray[np.float64]
"""Times in seconds, in the order in which they were taken."""


@dataclass(frozen=True)
class Run:
    """What one process timed with one set of sides.

    Attributes:
        process: which process it was, counted from 0 in order of time.
        others: how many cores other processes kept busy meanwhile.
        times: by side, in ticks; sample i of one side was taken next to sample i of the others.
    """

    process: int
    others: float
    times: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Recording:
    """Runs of one design on one machine.

    Attributes:
        design: "interleaved" (many runs a process) or "separate" (one run a process).
        disturbed: whether a second process loaded the machine.
        machine: processor, cores and library versions.
        started, finished: ISO 8601.
        tick_s: length of a tick in seconds.
    """

    design: str
    disturbed: bool
    machine: str
    started: str
    finished: str
    tick_s: float
    runs: tuple[Run, ...]

    def seconds(self, run: Run, side: str) -> Times:
        """The times of a side of a run."""
        return np.asarray(run.times[side], dtype=np.float64) * self.tick_s


def path(design: str, disturbed: bool) -> Path:
    """Where a recording is kept."""
    return FOLDER / f"{design}-{'disturbed' if disturbed else 'quiet'}.json"


def save(recording: Recording, file: Path) -> None:
    """Writes a recording, one run a line."""
    files.save(asdict(recording), "runs", file)


def load(file: Path) -> Recording:
    """Reads a recording.

    Raises:
        ValueError: the file holds none.
        OSError: it cannot be read.
    """
    return files.load(file, _made, "is no recording")


def _made(content: dict[str, Any]) -> Recording:
    runs = tuple(
        Run(run["process"], run["others"], {side: tuple(times) for side, times in run["times"].items()})
        for run in content.pop("runs")
    )
    return Recording(**content, runs=runs)
