"""Locks: the exact version of everything that an environment of the suite has, as constraints for pip.

`locks/NAME.txt` is for a framework's environment, `locks/frameworks.txt` for all frameworks in one, `locks/suite.txt`
for what every environment has, `locks/tools.txt` for that and the suite's development. A line with a marker holds for
the Pythons and platforms that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parents[2] / "locks"
SUITE, TOOLS, ALL = "suite", "tools", "frameworks"


def read(name: str, markers: Mapping[str, str] | None = None) -> dict[str, str]:
    """Versions by normalized name, as they hold on this Python and platform.

    Args:
        markers: values of environment markers of another one.

    Raises:
        FileNotFoundError: there is no lock of that name.
    """
    return {
        canonicalize_name(line.name): _version(line)
        for line in _lines(name)
        if line.marker is None or line.marker.evaluate(dict(markers) if markers else None)
    }


def examples(name: str) -> dict[str, str]:
    """A version of every package in a lock by normalized name, whatever the Python and platform."""
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
    return [f"{name} {here}, not {pinned}" for name, pinned, here in installed if here and not same(here, pinned)]


def same(version: str, pinned: str) -> bool:
    """Whether a version is the pinned one; a local label such as "+cpu" counts only if it is pinned too."""
    return Requirement(f"x=={pinned}").specifier.contains(version, prereleases=True)


def installed_version(package: str) -> str | None:
    """The installed version of a package, local label included; None if there is none."""
    try:
        return version_of(package)
    except PackageNotFoundError:
        return None


def satisfied(requirement: str) -> bool:
    """Whether an installed package meets a requirement such as "numpy<2.4"."""
    wanted = Requirement(requirement)
    here = installed_version(wanted.name)
    return here is not None and wanted.specifier.contains(here, prereleases=True)


def names(requirements: Iterable[str]) -> set[str]:
    """The normalized names of packages in requirements."""
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}
