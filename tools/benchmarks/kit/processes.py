"""Provenance of samples, and measuring processes: one thread each, and the same hash seed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
TICK_NS = 100
"""Length of a tick in nanoseconds; times are stored in ticks."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class RunError(RuntimeError):
    """A process failed; the message is one line."""


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


def now() -> str:
    """The time, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a measured process."""
    return os.environ | dict.fromkeys(_THREADS, "1") | {"PYTHONHASHSEED": "0"} | dict(more or {})


def python(*arguments: str, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end; `more` is added to its environment."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(more), capture_output=True, text=True, check=False)


def failed(ended: subprocess.CompletedProcess[str]) -> RunError:
    """The error of a process that failed: its status and the last line that it wrote, on either stream."""
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return RunError(f"a process exited with {ended.returncode}: {lines[-1] if lines else 'no output'}")
