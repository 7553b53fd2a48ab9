"""Installs frameworks: at the locked versions, or at the versions that the environment names.

Variables, for NAME one of TORCH, TF, PADDLE and JAX (an empty one is not set):

- NAME_VERSION: the framework's version; its companions are then those that go with it.
- PACKAGE_VERSION (KERAS_VERSION, FLAX_VERSION, NUMPY_VERSION, ...): the version of a package installed with it.
- NAME_INDEX: address of an additional index for the framework.
- NAME_REQUIREMENT: replaces the framework's package: a wheel's path or address, or a requirement.
- CONFORMANCE_INSTALLER: uv, the default where it is installed, or pip.

If there is an NVIDIA driver, the GPU build is installed, from the index that has it. Several frameworks are installed
together under `locks/frameworks.txt`. docs/versions.md says what uv does and what pip does.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from frameworks.installer import locks, uv
from frameworks.installer.distributions import ALIASES, DISTRIBUTIONS, Unavailable, variable_of
from frameworks.installer.locks import installed_version as installed
from frameworks.registry import adapter_file

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


NEWEST = "versions are the newest that declare to go with each other"
AROUND = "the lock does not go with the versions that are asked for; other packages are the newest that do"
ON_NUMPY = ("autograd", "ml-dtypes", "scikit-learn", "scipy")
"""Packages of every environment that are built on NumPy and may have to change with its version."""


def main(names: Sequence[str], modes: Collection[str] = ()) -> int:
    """Install frameworks with the packages of these modes; return the exit status."""
    try:
        remark = install(names, read_request(names, modes))
    except Unavailable as refusal:
        print(redact(str(refusal)), file=sys.stderr)
        return 2
    if remark:
        print(redact(f"{', '.join(names)}: {remark}"), file=sys.stderr)
    return 0


def installed_version(framework: str) -> str | None:
    """Return the installed version of a built-in framework's package, for the CPU or a GPU, without its local label."""
    version = next(filter(None, map(installed, DISTRIBUTIONS[framework].packages)), None)
    return version.partition("+")[0] if version else None


def lacking(framework: str, modes: Collection[str]) -> str:
    """Return the missing packages of these modes of a built-in framework, "" if none is missing."""
    if framework not in DISTRIBUTIONS:
        return ""
    module = adapter_file(framework).imports[0]
    if find_spec(module) is None:
        return f"{module} is not installed; install it with pip, or the pinned one by `conformance install {framework}`"
    missing = [package for package in DISTRIBUTIONS[framework].companions_in(modes) if not installed(package)]
    return f"not installed: {', '.join(missing)}; pip install {' '.join(missing)}" if missing else ""


def install(names: Sequence[str], request: InstallRequest) -> str:
    """Install frameworks and their companions unless they are installed; return a remark for the user.

    Raises:
        Unavailable: something cannot be installed.
    """
    requirements = []
    for name in names:
        package = DISTRIBUTIONS[name].cpu if request.gpu is None else DISTRIBUTIONS[name].gpu
        source = request.sources.get(f"{name.upper()}_REQUIREMENT")
        requirements.append(source or f"{package}=={request.versions[name]}")
    companions = _companions(names, request)
    if _is_installed(names, request, [*requirements, *companions]):
        return ""
    if sys.stderr.isatty():
        print(redact(f"installing {', '.join(requirements)}"), file=sys.stderr)
    try:
        pins, remark = _pins(names, request)
        suite = locks.read(locks.SUITE)
        if pins.get("numpy") != suite.get("numpy"):
            companions += [package for package in ON_NUMPY if installed(package)]
        indexes = [index for name in names if (index := _index(name, request))]
        try:
            uv.install([*requirements, *companions], pins, indexes)
        except Unavailable:
            if not (request.locked and request.packages):
                raise
            pins, remark = {name: pins[name] for name in pins if name in {**suite, **request.packages}}, AROUND
            uv.install([*requirements, *companions], pins, indexes)
    except Unavailable as refusal:
        variables = " or ".join(f"{name.upper()}_VERSION" for name in names)
        hints = [f", or {name.upper()}_INDEX to an index that has it" for name in names if request.gpu is not None]
        what = ", ".join(requirements).replace("==", " ")
        remedy = f"set {variables} to another version{''.join(hints)}"
        raise Unavailable(f"{what} cannot be installed ({refusal}); {remedy}") from None
    return remark


def _companions(names: Sequence[str], request: InstallRequest) -> list[str]:
    """Companions with their requested versions, and the undeclared requirements."""
    packages = [package for name in names for package in DISTRIBUTIONS[name].companions_in(request.modes)]
    wanted = [
        f"{package}=={request.packages[package]}" if package in request.packages else package for package in packages
    ]
    limits = [limit for name in names for limit in DISTRIBUTIONS[name].limits_of(request.versions[name])]
    return [*wanted, *(limit for limit in limits if not locks.names([limit]) & request.packages.keys())]


def _index(name: str, request: InstallRequest) -> str:
    """Address of the additional index that has the framework, "" if none is needed."""
    if index := request.sources.get(f"{name.upper()}_INDEX"):
        return index
    has_source = f"{name.upper()}_REQUIREMENT" in request.sources
    if request.gpu is None or has_source or (name == "torch" and uv.by_uv()):
        return ""
    return DISTRIBUTIONS[name].index_of(request.versions[name], request.gpu)


def _pins(names: Sequence[str], request: InstallRequest) -> tuple[dict[str, str], str]:
    """Versions of all packages but the frameworks themselves, and a remark on how they were chosen."""
    own = {canonicalize_name(package) for name in names for package in DISTRIBUTIONS[name].packages}
    pins: dict[str, str] = {}
    remark = ""
    if request.locked:
        pins = _lock(names)
    elif len(names) == 1 and not any(variable.endswith("_REQUIREMENT") for variable in request.sources):
        package, version = DISTRIBUTIONS[names[0]].cpu, request.versions[names[0]]
        requirements = [f"{package}=={version}", *_companions(names, request)]
        try:
            pins = uv.companions(package, version, requirements, request.packages, locks.read(locks.SUITE))
        except Unavailable as refusal:
            remark = f"{NEWEST} ({refusal})"
    else:
        remark = NEWEST
    return {package: version for package, version in {**pins, **request.packages}.items() if package not in own}, remark


def _is_installed(names: Sequence[str], request: InstallRequest, requirements: Sequence[str]) -> bool:
    """Return whether the requested packages are installed; extras and packages from other sources count as missing."""
    if request.sources or any("[" in requirement for requirement in requirements):
        return False
    pins = {**(_lock(names) if request.locked else {}), **request.packages}
    wanted = [*requirements, *(f"{name}=={version}" for name, version in request.packages.items())]
    return all(map(locks.is_satisfied, wanted)) and not locks.deviations(pins)


def _lock(names: Sequence[str]) -> dict[str, str]:
    return locks.read(names[0] if len(names) == 1 else locks.ALL)
