"""Runs the commands, each in a process of its own, and takes their times."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.kit.processes import failed, machine, now, python
from benchmarks.suite.part import SHARE
from benchmarks.suite.samples import CommandRuns, SuiteCost
from results.record.reading import load

REPEATS = 2
"""How often what takes no test is run."""

SHARES = ("0.25", "0.5", "0.75", "1.0")
_LOADED = "import sys; from frameworks.registry import load; load(*sys.argv[1:])"


def cost(framework: str, selection: str = "", device: str = "cpu") -> SuiteCost:
    """Start-up, growing shares of the clauses in one process, and all of them in two workers.

    Args:
        framework: the adapter's name, in its first mode.
        selection: pytest's -k, "" for all tests.
    Raises:
        RunError: a command failed; the message ends with the last line that it wrote.
    """
    started = now()
    chosen = [f"--framework={framework}", f"--device={device}", *(["-k", selection] if selection else [])]
    pytest = ["-m", "pytest", "-q", *chosen]
    runs = [
        _run("help", ["-m", "conformance", "--help"], REPEATS),
        _run("import", ["-c", _LOADED, framework, device], REPEATS),
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
    return SuiteCost(framework, made.variant.framework_version, place, machine(), started, selection, tuple(runs))


def _judged(what: str, command: Sequence[str], record: Path, share: str) -> CommandRuns:
    run = _run(what, command, 1, {SHARE: share})
    verdicts = load(record).verdicts
    return CommandRuns(what, run.wall_s, run.cpu_s, len({verdict.clause for verdict in verdicts}), len(verdicts))


def _run(what: str, command: Sequence[str], repeats: int, more: dict[str, str] | None = None) -> CommandRuns:
    wall, cpu = [], []
    for _ in range(repeats):
        begin, before = perf_counter(), _processors()
        ended = python(*command, more=more)
        wall.append(round(perf_counter() - begin, 3))
        cpu.append(round(_processors() - before, 3))
        if ended.returncode not in (0, 1):
            raise failed(ended)
    return CommandRuns(what, tuple(wall), tuple(cpu))


def _processors() -> float:
    """Seconds of processors that ended child processes have used, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
