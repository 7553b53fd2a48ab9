"""Locks: the exact version of everything that an environment of the suite has, as constraints for pip.

`locks/NAME.txt` is for a framework's environment, `locks/frameworks.txt` for all frameworks in one, `locks/suite.txt`
for what every environment has, `locks/tools.txt` for that and the suite's development. Each line says for which Python
and platform it holds; elsewhere pip passes over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parent.parent.parent / "locks"
SUITE, TOOLS, ALL = "suite", "tools", "frameworks"

PLATFORM = 'sys_platform == "linux" and platform_machine == "x86_64"'
"""What the committed locks were made on."""

_HEADER = """\
# Made by `conformance self lock` on Linux x86-64 for Python {pythons}. Constraints for pip; they apply there alone.
"""


def read(name: str) -> dict[str, str]:
    """Versions by normalized name, as far as the lock holds on this Python and platform; none where it does not.

    Raises:
        FileNotFoundError: there is no lock of that name.
    """
    pins: dict[str, str] = {}
    for line in (FOLDER / f"{name}.txt").read_text("utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text and ((wanted := Requirement(text)).marker is None or wanted.marker.evaluate()):
            (pin,) = wanted.specifier
            pins[canonicalize_name(wanted.name)] = pin.version
    return pins


def examples(name: str) -> dict[str, str]:
    """A version of every package in a lock by normalized name, whatever the Python and platform."""
    path = FOLDER / f"{name}.txt"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    found = (line.partition(" ;")[0].split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(package): version for package, version in found}


def write(path: Path, solutions: Mapping[str, Mapping[str, str]]) -> None:
    """Writes a lock from what was resolved for each Python ("3.11"), versions by normalized name."""
    pythons = sorted(solutions, key=lambda python: [int(part) for part in python.split(".")])
    lines = []
    for name in sorted({name for pins in solutions.values() for name in pins}):
        versions = {python: solutions[python].get(name) for python in pythons}
        for version in dict.fromkeys(filter(None, versions.values())):
            where = " ".join(python for python in pythons if versions[python] == version)
            lines.append(f'{name}=={version} ; python_version in "{where}" and {PLATFORM}\n')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_HEADER.format(pythons=", ".join(pythons)) + "".join(lines), encoding="utf-8")


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
