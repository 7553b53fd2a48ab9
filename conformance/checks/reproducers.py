"""Runs the reproducer of a finding in a new process, without the suite.

A program prints one line `expected: ...` and one line `seen: ...`, and exits with 1 if the finding is present, with 0
if it is gone. Anything else is an error.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.resources import as_file
from importlib.resources.abc import Traversable
from pathlib import Path

LIMIT_S = 120
"""Time limit of a program, in seconds."""

ATTEMPTS = 2
"""Number of runs of a program that fails without a report: a framework sometimes crashes at exit."""

_ROOT = os.path.realpath(Path(__file__).parents[2])
_QUIET = {"PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "2", "GLOG_minloglevel": "3"}


class ProgramError(Exception):
    """A reproducer failed to report; the message is one line."""


@dataclass(frozen=True)
class ProgramResult:
    """The report of a program: expected and observed behaviour, and whether the finding is present."""

    expected: str
    observed: str
    present: bool


def run(program: Traversable) -> ProgramResult:
    """Run a program under this interpreter and return its report.

    Raises:
        ProgramError: the program did not end in time; or `ATTEMPTS` times in a row, it ended with a status other than
            0 and 1, or without its two lines.
    """
    for _ in range(ATTEMPTS):
        completed = _run_program(program)
        reports = {key: _reports(completed.stdout, key) for key in ("expected", "seen")}
        if completed.returncode in (0, 1) and all(len(lines) == 1 for lines in reports.values()):
            return ProgramResult(reports["expected"][0], reports["seen"][0], completed.returncode == 1)
    error_lines = [line for line in completed.stderr.splitlines() if line.strip()] or ["it printed nothing"]
    if error_lines[-1].startswith("ModuleNotFoundError"):
        raise ProgramError(f"{error_lines[-1]}; `python -m conformance install NAME` installs a framework")
    printed = ", ".join(f"{len(lines)} lines `{key}:`" for key, lines in reports.items())
    raise ProgramError(f"{program.name} exited with {completed.returncode}, printed {printed}: {error_lines[-1]}")


def _run_program(program: Traversable) -> subprocess.CompletedProcess[str]:
    with as_file(program) as path, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", str(path.resolve())]
        environment = os.environ | _QUIET | {"PYTHONPATH": os.pathsep.join(_foreign_folders()), "TMPDIR": folder}
        try:
            return subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ProgramError(f"{program.name} did not end within {LIMIT_S} s") from None


def _foreign_folders() -> list[str]:
    """Return the folders of PYTHONPATH without the suite's own; a cluster may provide frameworks in them."""
    folders = [os.path.realpath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return [folder for folder in folders if folder != _ROOT]


def _reports(output: str, key: str) -> list[str]:
    marker = f"{key}: "
    return [line.removeprefix(marker).strip() for line in output.splitlines() if line.startswith(marker)]
