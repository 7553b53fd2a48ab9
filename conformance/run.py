"""One framework's whole job: installs it, runs the suites in each of the given modes, sets all records side by side.

    python -m conformance.run torch
    python -m conformance.run paddle --modes dygraph,static --serial static -- -k scaling

Two workers share the tests of a mode; one runs those of a serial mode, in their order. What stands behind `--` goes to
pytest. CONFORMANCE_DEVICE names the device, "auto" by default. Exit status: 0; 1 if a test failed that no expectation
names; 2 if a run could not be made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.recorder import RECORDS
from frameworks import install

ROOT = Path(__file__).parent.parent


def judge(framework: str, mode: str, workers: int, words: Sequence[str]) -> int:
    """Runs the suites in a process of their own; returns pytest's exit status, 0 also if nothing was selected."""
    device = os.environ.get("CONFORMANCE_DEVICE") or "auto"
    command = [sys.executable, "-m", "pytest", f"--numprocesses={workers}", "--dist=worksteal", "--timeout=120"]
    command += [f"--framework={framework}", f"--device={device}", *([f"--mode={mode}"] if mode else []), *words]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0 if status == 5 else status


def main(arguments: Sequence[str]) -> int:
    """Does the job; returns the exit status."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    own, words = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(prog="python -m conformance.run")
    parser.add_argument("framework")
    parser.add_argument("--modes", default="", help="comma-separated; the framework's first mode if not given")
    parser.add_argument("--serial", default="", help="comma-separated modes whose process keeps state between tests")
    chosen = parser.parse_args(own)
    serial = chosen.serial.split(",")
    if chosen.framework in install.DISTRIBUTIONS and install.main([chosen.framework]):
        return 2
    statuses = [
        judge(chosen.framework, mode, 1 if mode and mode in serial else 2, words) for mode in chosen.modes.split(",")
    ]
    if 2 in statuses:
        return 2
    if not any(RECORDS.glob("*.json")):
        return 1 if any(statuses) else 0
    table = subprocess.run([sys.executable, "-m", "results", "table"], cwd=ROOT, check=False).returncode
    return 1 if any(statuses) else table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
