"""Runs the commands, each in a process of its own, and takes their times."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.calibration.recording import THREADS, machine
from benchmarks.suite.part import SHARE
from benchmarks.suite.samples import Cost, Run
from results.records import load

ROOT = Path(__file__).parents[2]
REPEATS = 2
"""How often what takes no test is run."""

SHARES = ("0.25", "0.5", "0.75", "1.0")
_LOADED = "import sys; from frameworks.registry import load; load(sys.argv[1], 'cpu')"


class Failed(Exception):  # noqa: N818 - shown to the user as one line
    """A command failed, so its time says nothing."""


def cost(framework: str, selection: str = "") -> Cost:
    """Start-up, growing shares of the clauses in one process, and all of them in two workers.

    Args:
        framework: the adapter's name; on the CPU, in its first mode.
        selection: pytest's -k, "" for all tests.
    Raises:
        Failed: a command failed; the message is the last line that it wrote.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    chosen = [f"--framework={framework}", "--device=cpu", *(["-k", selection] if selection else [])]
    pytest = ["-m", "pytest", "-q", *chosen]
    runs = [
        _run("help", ["-m", "conformance", "--help"], REPEATS),
        _run("import", ["-c", _LOADED, framework], REPEATS),
        _run("collection", [*pytest, "--collect-only"], REPEATS),
        _run("first test", [*pytest, "-p", "benchmarks.suite.first"], REPEATS),
    ]
    with TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        part = [*pytest, "-p", "benchmarks.suite.part", f"--record={record}"]
        _run("filling the cache of bounds", [*part, "--numprocesses=2"], 1, {SHARE: SHARES[-1]})
        for share in SHARES:
            runs.append(_judged(share, part, record, share))
        runs.append(_judged("two workers", [*part, "--numprocesses=2"], record, SHARES[-1]))
        made = load(record)
    place = f"{made.series.device} {made.series.mode}"
    return Cost(framework, made.variant.framework_version, place, selection, machine(), started, tuple(runs))


def _judged(what: str, command: Sequence[str], record: Path, share: str) -> Run:
    run = _run(what, command, 1, {SHARE: share})
    verdicts = load(record).verdicts
    return Run(what, run.wall_s, run.cpu_s, len({verdict.clause for verdict in verdicts}), len(verdicts))


def _run(what: str, command: Sequence[str], repeats: int, more: dict[str, str] | None = None) -> Run:
    environment = os.environ | dict.fromkeys(THREADS, "1") | {"PYTHONHASHSEED": "0"} | (more or {})
    wall, cpu = [], []
    for _ in range(repeats):
        begin, before = perf_counter(), _processors()
        ended = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        wall.append(round(perf_counter() - begin, 3))
        cpu.append(round(_processors() - before, 3))
        if ended.returncode not in (0, 1):
            said = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
            raise Failed(f"{what}: exit status {ended.returncode}: {said[-1] if said else 'no word'}")
    return Run(what, tuple(wall), tuple(cpu))


def _processors() -> float:
    """Seconds of processors that ended child processes have used, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
