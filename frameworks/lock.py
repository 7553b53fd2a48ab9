"""Makes the locks anew: what pip would install today, for the pinned versions of the frameworks.

    conformance self lock [--python INTERPRETER ...] [NAME ...]

A NAME is a framework, `frameworks` (all of them in one environment), `suite` (what every environment has) or `tools`
(what the suite's development needs besides); without one, all are made. A lock holds for the Pythons that are named, or
for the running one. Indexes and folders on this machine are left out: a lock names what everybody can have. Exit status
0, or 2 with one line.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from packaging.version import Version

from frameworks.installing import locks, pip
from frameworks.installing.distributions import DISTRIBUTIONS, Distribution, Unavailable

_ROOT = locks.FOLDER.parent
_SUITE = ("requirements.txt", "requirements-run.txt")
_DEVELOPMENT = tuple(f"requirements-{name}.txt" for name in ("report", "calibration", "self", "lint"))
_OWN = {locks.SUITE: _SUITE, locks.TOOLS: (*_SUITE, *_DEVELOPMENT)}


def main(arguments: Sequence[str]) -> int:
    """Makes the locks; returns the exit status."""
    parser = argparse.ArgumentParser(prog="conformance self lock", description="Makes the locks anew.")
    parser.add_argument("--python", action="append", metavar="INTERPRETER")
    parser.add_argument("names", nargs="*", choices=[*_OWN, *DISTRIBUTIONS, locks.ALL, []], metavar="NAME")
    options = parser.parse_args(arguments)
    pythons = {_python(interpreter): interpreter for interpreter in options.python or [sys.executable]}
    for name in options.names or [*_OWN, *DISTRIBUTIONS, locks.ALL]:
        try:
            solutions = solve_each(name, pythons)
        except Unavailable as refusal:
            print(f"{name} cannot be locked ({refusal})", file=sys.stderr)
            return 2
        locks.write(locks.FOLDER / f"{name}.txt", solutions)
    return 0


def solve_each(name: str, pythons: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What pip would install for each Python; the versions of the oldest for all of them, if they have these.

    Raises:
        Unavailable: there is no solution for one of them.
    """
    solutions: dict[str, dict[str, str]] = {}
    for python in sorted(pythons, key=Version):
        try:
            solutions[python] = solve(name, pythons[python], next(iter(solutions.values()), {}))
        except Unavailable:
            solutions[python] = solve(name, pythons[python], {})
    return solutions


def solve(name: str, interpreter: str, wishes: Mapping[str, str]) -> dict[str, str]:
    """What pip would install for an interpreter, for the processor and for GPUs, versions by normalized name.

    Args:
        wishes: versions that are to be kept to.

    Raises:
        Unavailable: there is no solution.
    """
    if name in _OWN:
        return _versions(_listed(_OWN[name]), wishes, interpreter)
    frameworks = list(DISTRIBUTIONS.values()) if name == locks.ALL else [DISTRIBUTIONS[name]]
    beside = [*_listed(_SUITE), *(wish for each in frameworks for wish in (*each.companions, *_limits(each)))]
    pins = _versions([*(f"{each.cpu}=={each.pinned}" for each in frameworks), *beside], wishes, interpreter)
    for each in frameworks:
        if each.gpu != each.cpu and not each.index_of(each.pinned, ""):
            pins = _versions([f"{each.gpu}=={each.pinned}", *beside], {**wishes, **pins}, interpreter) | pins
    return pins


def _versions(requirements: list[str], pins: Mapping[str, str], interpreter: str) -> dict[str, str]:
    resolved = pip.resolve(requirements, pins, environment=pip.remote(), interpreter=interpreter)
    return {name: package.version for name, package in resolved.items()}


def _limits(chosen: Distribution) -> list[str]:
    return chosen.limits_of(chosen.pinned)


def _listed(files: Sequence[str]) -> list[str]:
    """The requirements of files of the checkout."""
    lines = (
        line.partition("#")[0].strip() for name in files for line in (_ROOT / name).read_text("utf-8").splitlines()
    )
    return [line for line in lines if line]


def _python(interpreter: str) -> str:
    """Major and minor version of an interpreter.

    Raises:
        SystemExit: it does not run.
    """
    words = [interpreter, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    try:
        version = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        version = ""
    if not re.fullmatch(r"3\.\d+", version):
        print(f"{interpreter} is no Python that runs; name another with --python", file=sys.stderr)
        raise SystemExit(2)
    return version


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
