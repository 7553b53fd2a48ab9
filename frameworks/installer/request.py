"""What the user asks for, read from environment variables, and the GPU's driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from frameworks.installer import locks
from frameworks.installer.distributions import ALIASES, DISTRIBUTIONS, Unavailable, variable_of

_LOGIN = re.compile(r"([A-Za-z][\w+.-]*://)[^\s/?#]*@")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]*")


@dataclass(frozen=True)
class InstallRequest:
    """What the user asks for.

    Attributes:
        versions: of frameworks by their names here, where they are not the pinned ones.
        packages: versions of other packages by normalized name.
        places: NAME_INDEX and NAME_REQUIREMENT as they are set.
        gpu: newest CUDA version that the driver runs, "" where it does not say, None without a driver.
        modes: modes of the frameworks, whose packages are wanted too.
    """

    versions: Mapping[str, str]
    packages: Mapping[str, str]
    places: Mapping[str, str]
    gpu: str | None
    modes: tuple[str, ...] = ()

    def version(self, name: str) -> str:
        """The version of a framework that is asked for."""
        return self.versions.get(name, DISTRIBUTIONS[name].pinned)

    @property
    def pinned(self) -> bool:
        """Whether every framework is asked for at its pinned version, whatever the label, from where it usually is."""
        usual = all(Version(version).public == DISTRIBUTIONS[name].pinned for name, version in self.versions.items())
        return usual and not any(variable.endswith("_REQUIREMENT") for variable in self.places)


def read_request(names: list[str], modes: Collection[str] = ()) -> InstallRequest:
    """What the environment asks for the named frameworks, in these modes.

    Raises:
        Unavailable: a variable holds no version, or an option of pip.
    """
    versions = {
        name: asked for name in names if (asked := _asked(f"{name.upper()}_VERSION", DISTRIBUTIONS[name].pinned))
    }
    known = {package: pinned for name in (locks.SUITE, *names) for package, pinned in locks.examples(name).items()}
    own = {canonicalize_name(package) for each in DISTRIBUTIONS.values() for package in each.packages}
    variables = {variable_of(package): package for package in known.keys() - own} | ALIASES
    packages = {
        package: asked
        for variable, package in sorted(variables.items())
        if package in known and (asked := _asked(variable, known[package]))
    }
    places = {
        variable: os.environ[variable]
        for name in names
        for variable in (f"{name.upper()}_INDEX", f"{name.upper()}_REQUIREMENT")
        if _placed(variable)
    }
    return InstallRequest(versions, packages, places, driver(), tuple(modes))


def driver() -> str | None:
    """The newest CUDA version that the NVIDIA driver runs, "" if it does not say, None if there is no driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    ended = subprocess.run([command], capture_output=True, text=True, check=False)
    named = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", ended.stdout)
    return None if ended.returncode else named[1] if named else ""


def redacted(text: str) -> str:
    """The text without names and passwords in addresses."""
    return _LOGIN.sub(r"\1***@", text)


def _placed(variable: str) -> bool:
    place = os.environ.get(variable, "")
    if place.lstrip().startswith("-"):
        raise Unavailable(f"{variable} begins with '-', as an option of pip does; write an address, a path or a name")
    return bool(place)


def _asked(variable: str, example: str) -> str:
    asked = os.environ.get(variable, "")
    try:
        if asked and (not _VERSION.fullmatch(asked) or not Version(asked)):
            raise InvalidVersion
    except InvalidVersion:
        raise Unavailable(f"{variable}={asked!r} is not a version; write one such as {example}") from None
    return asked
