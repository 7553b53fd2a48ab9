"""Observation of a framework: attempts, times, and the processor."""

import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

from frameworks.contract import Attempt

_LISTING = Path("/proc/cpuinfo")
_DEPRECATIONS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)


def measure_elapsed(work: Callable[[], object], clock: Callable[[], int] = perf_counter_ns) -> int:
    """Nanoseconds that pass by a clock, the host's by default, until `work` returns."""
    begin = clock()
    work()
    return clock() - begin


def elapsed_between(work: Callable[[], object], wait: Callable[[], object]) -> int:
    """Nanoseconds of the host's clock that work takes between two waits for a device."""

    def work_and_wait() -> None:
        work()
        wait()

    wait()
    return measure_elapsed(work_and_wait)


def has_effect(attempt: Attempt) -> bool:
    """Whether an attempt took effect: it returned True, and did not raise or warn of anything but a deprecation."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            acted = attempt()
        except Exception:
            return False
    return bool(acted) and all(issubclass(warning.category, _DEPRECATIONS) for warning in warned)


def processor() -> str:
    """The processor's model name, or its architecture if the system does not report one."""
    if _LISTING.is_file():
        for line in _LISTING.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
