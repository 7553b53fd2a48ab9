"""Commands in a process group of their own, with a limit of time; crashes are named by their signal."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conformance.runner.subprocesses import guarded


@dataclass(frozen=True)
class CommandResult:
    """How a command ended.

    Attributes:
        problem: why it did not succeed, in a few words; "" if it did.
        crashed: whether a signal ended it.
        late: whether it reached the limit.
    """

    output: str
    errors: str
    problem: str = ""
    crashed: bool = False
    late: bool = False


def run_apart(
    command: Sequence[str], limit_s: float, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> CommandResult:
    """Runs a command to its end or to the limit, in seconds; all of its group has ended then.

    A command that cannot be started has a problem, too.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return CommandResult("", "", f"cannot be started ({(error.strerror or type(error).__name__).lower()})")
    late = False
    try:
        with guarded(process.pid):
            try:
                said = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                late = True
                _kill(process.pid)
                said = process.communicate()
    finally:
        _kill(process.pid)
        process.wait()
    output, errors = (part.decode("utf-8", "replace") for part in said)
    if late:
        return CommandResult(output, errors, f"did not end within {limit_s:g} s", late=True)
    return CommandResult(output, errors, _problem(process.returncode), crashed=process.returncode < 0)


def _problem(status: int) -> str:
    if status < 0:
        return f"crashed with {signal.Signals(-status).name}"
    return f"ended with status {status}" if status else ""


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
