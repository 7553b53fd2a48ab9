"""The recorded samples: times of the same work, and of 5 % more of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.kit.samples import Store

Times = NDArray[np.float64]
"""Times in seconds, in the order in which they were taken."""


@dataclass(frozen=True)
class TimedProcess:
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
    runs: tuple[TimedProcess, ...]

    def seconds(self, run: TimedProcess, side: str) -> Times:
        """The times of a side of a run."""
        return np.asarray(run.times[side], dtype=np.float64) * self.tick_s


STORE = Store(Path(__file__).parent / "samples", Recording, "runs")


def name(design: str, disturbed: bool) -> str:
    """The name of a recording's file."""
    return f"{design}-{'disturbed' if disturbed else 'quiet'}"
