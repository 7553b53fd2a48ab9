"""Racing processes as the driver sees them: one question, one answer, within a time limit."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from conformance.runner.subprocesses import guarded

ROOT = Path(__file__).parents[2]

START_S = 300.0
"""Seconds in which a process has to start, to import its framework, and to make its first step."""

WORK_S = 120.0
"""Seconds for any other work."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LONGEST = 64 * 2**10


class RaceError(RuntimeError):
    """A race cannot be run; the message is one line."""


@dataclass(frozen=True)
class Racer:
    """A side of a race: an interpreter and what it loads."""

    python: Path
    framework: str
    device: str = "auto"
    mode: str = ""
    fixture: str = "encoder"

    @property
    def command(self) -> list[str]:
        """The command of its process."""
        words = ["-m", "conformance.race.worker", self.framework, self.device, self.mode, self.fixture]
        return [str(self.python), *words]


class RaceProcess:
    """A process that waits for work; `started` makes one."""

    def __init__(self, side: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._side, self._process, self._errors = side, process, errors
        self._rest = b""

    def ask(self, what: str, count: int = 1, limit_s: float = WORK_S) -> dict[str, Any]:
        """The answer to a question.

        Raises:
            RaceError: the process refused, died, took too long or answered something else.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{what} {count}\n".encode())
            self._process.stdin.flush()
        answer = self.answer(limit_s)
        if "refused" in answer:
            raise RaceError(f"{self._side}: {what}: {str(answer['refused'])[:300]}")
        return answer

    def value(self, what: str, count: int = 1, limit_s: float = WORK_S) -> int:
        """The number that answers a question.

        Raises:
            RaceError: as `ask`, or it is no positive number.
        """
        value = self.ask(what, count, limit_s).get("value")
        if not isinstance(value, int) or value <= 0:
            raise RaceError(f"{self._side}: {what}: got {str(value)[:40]!r}, want a positive number")
        return value

    def answer(self, limit_s: float) -> dict[str, Any]:
        """The next line of the process.

        Raises:
            RaceError: as `ask`.
        """
        line = self._line(limit_s)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RaceError(f"{self._side}: got {line[:80]!r} from its process, want JSON")
        return answer

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.monotonic() + limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], max(end - time.monotonic(), 0.0))
            if not ready:
                raise RaceError(f"{self._side}: no answer within {limit_s:.0f} s; choose a smaller --fixture")
            piece = os.read(descriptor, _LONGEST)
            if not piece or len(self._rest) > _LONGEST:
                raise RaceError(f"{self._side}: its process ended: {self._last_words()}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        said = lines[-1] if lines else f"exit status {self._process.poll()}"
        return " ".join(said.split())[:300]


@contextmanager
def started(side: str, racer: Racer) -> Iterator[RaceProcess]:
    """A process within the context, which ends with it and has imported all but its framework.

    Raises:
        RaceError: it cannot be started.
    """
    variables = os.environ | dict.fromkeys(_THREADS, "1") | {"PYTHONHASHSEED": "0"}
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        try:
            process = subprocess.Popen(
                racer.command,
                cwd=ROOT,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
        except OSError as error:
            why = (error.strerror or type(error).__name__).lower()
            raise RaceError(f"{side}: {racer.python}: {why}; name a Python that has the framework") from None
        stack.callback(_end, process)
        stack.enter_context(guarded(process.pid))
        one = RaceProcess(side, process, errors)
        one.answer(START_S)
        yield one


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
