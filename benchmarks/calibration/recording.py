"""Records samples: processes that time the work, one after the other, with or without a disturbance beside them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.calibration.samples import TICK_NS, Recording, Run

ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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
        RuntimeError: a process failed; the message ends with the last line that it wrote.
    """
    design = DESIGNS[name]
    count = design.processes if processes is None else processes
    if count < 1:
        raise ValueError(f"{count} processes record nothing: at least one is needed")
    started = _now()
    runs: list[Run] = []
    with _disturbance(disturbed):
        for process in range(count):
            seed = 2 * process + disturbed
            command = ["worker", str(seed), str(design.runs), str(design.rounds), *design.sides]
            ended = subprocess.run(
                _python(*command), cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False
            )
            if ended.returncode:
                raise RuntimeError(f"a process ended with {ended.returncode}: {ended.stderr.strip().splitlines()[-1]}")
            for run in json.loads(ended.stdout):
                runs.append(Run(process, run["others"], {side: tuple(times) for side, times in run["times"].items()}))
    return Recording(name, disturbed, machine(), started, _now(), TICK_NS / 1e9, tuple(runs))


def machine() -> str:
    """Processor, cores and versions in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    packages = ", ".join(f"{package} {version(package)}" for package in ("numpy", "autograd"))
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, {packages}"


def _environment() -> dict[str, str]:
    return os.environ | dict.fromkeys(THREADS, "1")


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.calibration.{module}", *arguments]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _disturbance(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    with subprocess.Popen(_python("disturbance", "0"), cwd=ROOT, env=_environment()) as process:
        try:
            yield
        finally:
            process.terminate()
