"""Runs a scenario in the requested frameworks, one process after another."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.runner.subprocesses import guarded
from conformance.scenarios import Scenario
from conformance.scenarios.worker import CANNOT, NO_PART, SAYS
from results.record.folders import WRITTEN
from results.record.reading import Record, load

ROOT = Path(__file__).parent.parent.parent
FOLDER = WRITTEN / "scenarios"

Watch = Callable[[range, str], Iterator[int]]
"""Iterates over the rounds with a labelled progress bar, like `conformance.cli.options.watched`."""


@dataclass(frozen=True)
class FrameworkResult:
    """The result of one framework.

    Attributes:
        status: the worker's exit status; negative if a signal ended it.
        reason: why there is no record, or "".
    """

    framework: str
    status: int
    record: Record | None = None
    reason: str = ""

    @property
    def absent(self) -> bool:
        """Whether nothing was tried, because it cannot be loaded here or has no part in the scenario."""
        return self.record is None and self.status in (CANNOT, NO_PART)


def launch(
    scenario: Scenario, framework: str, device: str, mode: str, rounds: int, folder: Path, watch: Watch
) -> FrameworkResult:
    """Runs one framework's part to its end; `rounds` 0 runs all of them."""
    words = [scenario.name, framework, device, mode, str(rounds), str(folder.resolve())]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        command = [sys.executable, "-m", "conformance.scenarios.worker", *words]
        worker = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
        assert worker.stdout is not None
        try:
            with guarded(worker.pid):
                place = _follow(worker.stdout, f"{scenario.name}, {framework}", watch)
                status = worker.wait()
        finally:
            worker.kill()
            worker.wait()
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    if place:
        return FrameworkResult(framework, status, load(Path(place)))
    return FrameworkResult(framework, status, reason=lines[-1] if lines else f"the process exited with status {status}")


def _follow(lines: Iterator[str] | Sequence[str], label: str, watch: Watch) -> str:
    """Reads the worker's output, shows its progress, and returns the record's path, "" without one."""
    said = (json.loads(line[len(SAYS) :]) for line in lines if line.startswith(SAYS))
    for news in said:
        if "rounds" in news:
            for _ in watch(range(int(news["rounds"])), label):
                news = next(said, {})
                if "done" not in news:
                    break
        if "record" in news:
            return str(news["record"])
    return ""
