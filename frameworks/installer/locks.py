"""Locks: the exact version of every package in an environment of the suite, as constraints for pip.

`locks/NAME.txt` is for a framework's environment, `locks/frameworks.txt` for all frameworks in one, `locks/suite.txt`
for the packages of every environment, `locks/tools.txt` for those and the tools of development. A line with a marker
applies to the Pythons and platforms that it names. uv makes the locks, for all Pythons and platforms of the project:

    python -m tools lock [--upgrade] [NAME ...]

A NAME is a framework, `frameworks`, `suite` or `tools`; without a NAME, all locks are made. Versions in a lock are kept
if possible; with --upgrade, each becomes the newest. A lock has the packages for CPUs and for GPUs. The exit status is
0, or 2 with one line.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from frameworks.installer import uv
from frameworks.installer.distributions import DISTRIBUTIONS, Unavailable

FOLDER = Path(__file__).parents[2] / "locks"
SUITE, TOOLS, ALL = "suite", "tools", "frameworks"

GROUPS = {TOOLS: ("run", "report", "self", "lint", "docs")}
"""The dependency groups of pyproject.toml in a lock; a lock that is not listed has only the group `run`."""


def read(name: str, markers: Mapping[str, str] | None = None) -> dict[str, str]:
    """The locked versions for this Python and platform, by normalized name.

    Args:
        markers: values of environment markers for another Python or platform.

    Raises:
        FileNotFoundError: the lock does not exist.
    """
    return {
        canonicalize_name(line.name): _version(line)
        for line in _lines(name)
        if line.marker is None or line.marker.evaluate(dict(markers) if markers else None)
    }


def examples(name: str) -> dict[str, str]:
    """A locked version of every package in a lock, for some Python and platform, by normalized name."""
    return {canonicalize_name(line.name): _version(line) for line in _lines(name)}


def _lines(name: str) -> Iterator[Requirement]:
    for line in (FOLDER / f"{name}.txt").read_text("utf-8").splitlines():
        if text := line.partition("#")[0].strip():
            yield Requirement(text)


def _version(line: Requirement) -> str:
    (pin,) = line.specifier
    return pin.version


def deviations(pins: Mapping[str, str]) -> list[str]:
    """Installed packages that have another version than the pinned one, each as "numpy 2.4.0, not 2.4.6"."""
    installed = ((name, pinned, installed_version(name)) for name, pinned in sorted(pins.items()))
    return [f"{name} {own}, not {pinned}" for name, pinned, own in installed if own and not same(own, pinned)]


def same(version: str, pinned: str) -> bool:
    """Return whether a version is the pinned one; a local label such as "+cpu" counts only if it is pinned too."""
    return Requirement(f"x=={pinned}").specifier.contains(version, prereleases=True)


def installed_version(package: str) -> str | None:
    """The installed version of a package, local label included; None if there is none."""
    try:
        return version_of(package)
    except PackageNotFoundError:
        return None


def is_satisfied(requirement: str) -> bool:
    """Return whether an installed package meets a requirement such as "numpy<2.4"."""
    parsed = Requirement(requirement)
    version = installed_version(parsed.name)
    return version is not None and parsed.specifier.contains(version, prereleases=True)


def names(requirements: Iterable[str]) -> set[str]:
    """The normalized names of packages in requirements."""
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def main(arguments: Sequence[str]) -> int:
    """Makes the locks; returns the exit status."""
    everything = [SUITE, TOOLS, *DISTRIBUTIONS, ALL]
    parser = argparse.ArgumentParser(prog="python -m tools lock", description="Makes the locks again.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("names", nargs="*", choices=[*everything, []], metavar="NAME")
    options = parser.parse_args(arguments)
    for name in options.names or everything:
        groups = [f"--group={group}" for group in GROUPS.get(name, ("run",))]
        argv = ["--universal", "--custom-compile-command=python -m tools lock", *groups, "pyproject.toml"]
        argv += ["--upgrade"] if options.upgrade else []
        try:
            uv.solve(requirements(name), FOLDER / f"{name}.txt", *argv, folder=FOLDER.parent)
        except Unavailable as refusal:
            print(f"{name} cannot be locked ({refusal})", file=sys.stderr)
            return 2
    return 0


def requirements(name: str) -> list[str]:
    """Requirements of a lock in addition to the suite's own: frameworks, companions, and undeclared requirements."""
    chosen = DISTRIBUTIONS.values() if name == ALL else [DISTRIBUTIONS[name]] if name in DISTRIBUTIONS else []
    result: list[str] = []
    for distribution in chosen:
        builds = [distribution.cpu]
        if not distribution.index_of(distribution.pinned, ""):
            builds.append(distribution.gpu)
        result += [f"{package}=={distribution.pinned}" for package in builds]
        result += [*distribution.companions_in(distribution.modes), *distribution.limits_of(distribution.pinned)]
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
