"""The user's request for an installation, read from environment variables, and the NVIDIA driver's CUDA version."""

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
    """The user's request.

    Attributes:
        versions: versions of the frameworks, by adapter name.
        packages: versions of other packages, by normalized name.
        sources: values of the variables NAME_INDEX and NAME_REQUIREMENT that are set.
        gpu: newest CUDA version that the driver runs, "" if unknown, None without a driver.
        modes: modes of the frameworks whose packages are installed too.
    """

    versions: Mapping[str, str]
    packages: Mapping[str, str]
    sources: Mapping[str, str]
    gpu: str | None
    modes: tuple[str, ...] = ()

    @property
    def locked(self) -> bool:
        """True if every framework has its locked version, with any local label, from its usual index."""
        usual = all(Version(version).public == DISTRIBUTIONS[name].pinned for name, version in self.versions.items())
        return usual and not any(variable.endswith("_REQUIREMENT") for variable in self.sources)


def read_request(names: Collection[str], modes: Collection[str] = ()) -> InstallRequest:
    """Read the request for these frameworks and modes from environment variables.

    Raises:
        Unavailable: the value of a variable is not a version, or is an option of pip.
    """
    versions = {
        name: _version(f"{name.upper()}_VERSION", DISTRIBUTIONS[name].pinned) or DISTRIBUTIONS[name].pinned
        for name in names
    }
    known = {package: pinned for name in (locks.SUITE, *names) for package, pinned in locks.examples(name).items()}
    own = {canonicalize_name(package) for one in DISTRIBUTIONS.values() for package in one.packages}
    variables = {variable_of(package): package for package in known.keys() - own} | ALIASES
    packages = {
        package: version
        for variable, package in sorted(variables.items())
        if package in known and (version := _version(variable, known[package]))
    }
    sources = {
        variable: source
        for name in names
        for variable in (f"{name.upper()}_INDEX", f"{name.upper()}_REQUIREMENT")
        if (source := os.environ.get(variable))
    }
    for variable, source in sources.items():
        if source.lstrip().startswith("-"):
            raise Unavailable(f"{variable} begins with '-', as an option does; write an address, a path or a name")
    return InstallRequest(versions, packages, sources, driver(), tuple(modes))


def _version(variable: str, example: str) -> str:
    version = os.environ.get(variable, "")
    try:
        if version and (not _VERSION.fullmatch(version) or not Version(version)):
            raise InvalidVersion
    except InvalidVersion:
        raise Unavailable(f"{variable}={version!r} is not a version; write one such as {example}") from None
    return version


def driver() -> str | None:
    """Return the newest CUDA version that the NVIDIA driver runs, "" if unknown, None without a driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    completed = subprocess.run([command], capture_output=True, text=True, check=False)
    named = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", completed.stdout)
    return None if completed.returncode else named[1] if named else ""


def redact(text: str) -> str:
    """Return the text without user names and passwords in addresses."""
    return _LOGIN.sub(r"\1***@", text)
