"""Makes the locks again by uv: for every platform, and for every Python that the project admits.

    python -m tools lock [--upgrade] [NAME ...]

A NAME is a framework, `frameworks` (all of them in one environment), `suite` (what every environment has) or `tools`
(what the suite's development needs as well); without one, all are made. Versions that a lock has stay where they can;
with --upgrade, each becomes the newest. A lock has what goes with a framework on processors and on GPUs. Exit status 0,
or 2 with one line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from frameworks.installer import locks, uv
from frameworks.installer.distributions import DISTRIBUTIONS, Unavailable

GROUPS = {locks.TOOLS: ("run", "report", "self", "lint", "docs", "mutation")}
"""The dependency groups of pyproject.toml that a lock is about, where they are not `run` alone."""


def main(arguments: Sequence[str]) -> int:
    """Makes the locks; returns the exit status."""
    everything = [locks.SUITE, locks.TOOLS, *DISTRIBUTIONS, locks.ALL]
    parser = argparse.ArgumentParser(prog="python -m tools lock", description="Makes the locks again.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("names", nargs="*", choices=[*everything, []], metavar="NAME")
    options = parser.parse_args(arguments)
    for name in options.names or everything:
        groups = [f"--group={group}" for group in GROUPS.get(name, ("run",))]
        words = ["--universal", "--custom-compile-command=python -m tools lock", *groups, "pyproject.toml"]
        try:
            uv.solve(
                requirements(name),
                locks.FOLDER / f"{name}.txt",
                *words,
                *(["--upgrade"] if options.upgrade else []),
                folder=locks.FOLDER.parent,
            )
        except Unavailable as refusal:
            print(f"{name} cannot be locked ({refusal})", file=sys.stderr)
            return 2
    return 0


def requirements(name: str) -> list[str]:
    """What a lock has next to the suite's own dependencies: frameworks, their companions, and undeclared limits."""
    chosen = DISTRIBUTIONS.values() if name == locks.ALL else [DISTRIBUTIONS[name]] if name in DISTRIBUTIONS else []
    wanted: list[str] = []
    for each in chosen:
        builds = [each.cpu] if each.index_of(each.pinned, "") else [each.cpu, each.gpu]
        wanted += [f"{package}=={each.pinned}" for package in builds]
        wanted += [*each.companions_in(each.modes), *each.limits_of(each.pinned)]
    return wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
