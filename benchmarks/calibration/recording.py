"""Records samples: processes that time the work, one after the other, with or without a disturbance beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.calibration.samples import Recording, TimedProcess
from benchmarks.kit.processes import ROOT, TICK_NS, environment, failed, machine, now, python


@dataclass(frozen=True)
class Design:
    """How samples are taken.

    Attributes:
        processes, runs, rounds: how many processes, runs in each and rounds in each of these.
        sides: what is timed in each round.
    """

    processes: int
    runs: int
    rounds: int
    sides: tuple[str, ...]


DESIGNS = {
    "interleaved": Design(32, 10, 80, ("plain", "twin", "slower")),
    "separate": Design(240, 1, 60, ("technique", "slower technique", "plain", "foreign")),
}


def record(name: str, disturbed: bool, processes: int | None = None) -> Recording:
    """Takes the samples of a design.

    Args:
        name: the design's.
        disturbed: whether a load comes and goes meanwhile.
        processes: how many processes, instead of the design's number.
    Raises:
        ValueError: there is not at least one process.
        RunError: a process failed; the message ends with the last line that it wrote.
    """
    design = DESIGNS[name]
    count = design.processes if processes is None else processes
    if count < 1:
        raise ValueError(f"{count} processes record nothing: at least one is needed")
    started = now()
    runs: list[TimedProcess] = []
    with _disturbance(disturbed):
        for process in range(count):
            seed = 2 * process + disturbed
            ended = python(
                "-m", "benchmarks.calibration.worker", *map(str, (seed, design.runs, design.rounds)), *design.sides
            )
            if ended.returncode:
                raise failed(ended)
            for run in json.loads(ended.stdout):
                runs.append(
                    TimedProcess(process, run["others"], {side: tuple(times) for side, times in run["times"].items()})
                )
    return Recording(name, disturbed, machine(), started, now(), TICK_NS / 1e9, tuple(runs))


@contextmanager
def _disturbance(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.calibration.disturbance", "0"], cwd=ROOT, env=environment()
    ) as process:
        try:
            yield
        finally:
            process.terminate()
