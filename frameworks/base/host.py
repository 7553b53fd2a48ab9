"""The host process: its processor's name, times of work by its clock, and the depth of its call stacks."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

_LISTING = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor's model name, or its architecture if the system does not report one."""
    if _LISTING.is_file():
        for line in _LISTING.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measure_elapsed(work: Callable[[], object], clock: Callable[[], int] = perf_counter_ns) -> int:
    """Nanoseconds until `work` returns, by a clock, by default the host's."""
    begin = clock()
    work()
    return clock() - begin


def elapsed_between(work: Callable[[], object], wait: Callable[[], object]) -> int:
    """Nanoseconds of `work` by the host's clock, with a wait for the device before and after it."""

    def work_and_wait() -> None:
        work()
        wait()

    wait()
    return measure_elapsed(work_and_wait)


@contextmanager
def short_call_stacks() -> Iterator[None]:
    """Context in which `traceback` extracts only the innermost frame.

    Paddle extracts the whole stack for each operation of a static program. Under pytest and Hypothesis the stack has 80
    frames, and their extraction took longer than the construction of the program.
    """
    before = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 1
    try:
        yield
    finally:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before
