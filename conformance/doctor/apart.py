"""Commands in a process group of their own, with a limit of time; crashes are named by their signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.runner.subprocesses import guarded


@dataclass(frozen=True)
class CommandResult:
    """How a command ended.

    Attributes:
        problem: why it did not succeed, in a few words; "" if it did.
        exited: whether it ended by itself, before the limit and without a signal.
    """

    output: str
    errors: str
    problem: str = ""
    exited: bool = False

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The lines of JSON in the output; a crash may have cut the last one short."""
        result = []
        for line in self.output.splitlines():
            with suppress(ValueError):
                result.append(json.loads(line))
        return result


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
        return CommandResult(output, errors, f"did not end within {limit_s:g} s")
    status = process.returncode
    if status < 0:
        return CommandResult(output, errors, f"crashed with {signal.Signals(-status).name}")
    return CommandResult(output, errors, f"ended with status {status}" if status else "", exited=True)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
