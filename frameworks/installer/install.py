"""Installs frameworks: at the pinned versions under their lock, or at the versions that the environment names.

    python -m frameworks.installer.install torch

Variables, for NAME one of TORCH, TF, PADDLE and JAX:

- NAME_VERSION: the framework's version; its companions are then those that go with it.
- PACKAGE_VERSION (KERAS_VERSION, FLAX_VERSION, NUMPY_VERSION, ...): the version of anything that comes with it.
- NAME_INDEX: address of one more index to look for the framework on.
- NAME_REQUIREMENT: what to install in the framework's place: a wheel's path or address, or a requirement.
- CONFORMANCE_INSTALLER: pip, the default, or uv.

An empty variable is one that is not set. docs/versions.md says what pip does and what uv does.

Where the NVIDIA driver answers, the build for GPUs is chosen, from the index where it is. Several frameworks are
installed next to each other under a lock of their own. Exit status 0, or 2 with one line if something is not to be had.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from frameworks.adapter_file import adapter_file
from frameworks.installer import locks, pip, uv
from frameworks.installer.distributions import DISTRIBUTIONS, InstallerInterrupted, Unavailable
from frameworks.installer.locks import installed_version as installed
from frameworks.installer.request import InstallRequest, read_request, redacted

__all__ = ["DISTRIBUTIONS", "install", "installed_version", "lacking", "main"]

NEWEST = "versions are the newest that declare to go with each other"

AROUND = "the lock does not go with the versions that are asked for; other packages are the newest that do"

ON_NUMPY = ("autograd", "ml-dtypes", "scikit-learn", "scipy")
"""What every environment has that is built on NumPy, and may have to change with it."""


def main(arguments: list[str], modes: Collection[str] = ()) -> int:
    """Installs frameworks, and what these modes of theirs need; returns the exit status."""
    if not arguments or len(set(arguments)) < len(arguments) or not DISTRIBUTIONS.keys() >= set(arguments):
        print(f"usage: python -m frameworks.installer.install {{{','.join(DISTRIBUTIONS)}}} ...", file=sys.stderr)
        return 2
    try:
        for line in install(arguments, read_request(arguments, modes)):
            print(redacted(line), file=sys.stderr)
    except Unavailable as refusal:
        print(redacted(str(refusal)), file=sys.stderr)
        return 2
    return 0


def installed_version(framework: str) -> str | None:
    """The installed version of a built-in framework's package, for the CPU or a GPU, without its local label."""
    here = next(filter(None, map(installed, DISTRIBUTIONS[framework].packages)), None)
    return here.partition("+")[0] if here else None


def lacking(framework: str, modes: Collection[str]) -> str:
    """What these modes of a built-in framework need and what is not installed, with what installs it; "" if nothing."""
    if framework not in DISTRIBUTIONS:
        return ""
    module = adapter_file(framework).imports[0]
    if find_spec(module) is None:
        return f"{module} is not installed; install it with pip, or the pinned one by `conformance install {framework}`"
    missing = [each for each in DISTRIBUTIONS[framework].companions_in(modes) if not installed(each)]
    return f"not installed: {', '.join(missing)}; pip install {' '.join(missing)}" if missing else ""


def install(names: list[str], request: InstallRequest) -> list[str]:
    """Installs frameworks unless they are there already, with all that goes with them; returns remarks for the user.

    Raises:
        Unavailable: something is not to be had.
    """
    requirements = [_requirement(name, request) for name in names]
    beside = _beside(names, request)
    if _there(names, request, [*requirements, *beside]):
        return []
    if sys.stderr.isatty():
        print(redacted(f"installing {', '.join(requirements)}"), file=sys.stderr)
    suite = locks.read(locks.SUITE)
    try:
        pins, remark = _pins(names, request, suite)
        if pins.get("numpy") != suite.get("numpy"):
            beside += [package for package in ON_NUMPY if installed(package)]
        indices = [index for name in names if (index := _index(name, request))]
        try:
            pip.install([*requirements, *beside], pins, indices)
        except Unavailable as refusal:
            if isinstance(refusal, InstallerInterrupted) or not (request.pinned and request.packages):
                raise
            pins, remark = {name: pins[name] for name in pins if name in {**suite, **request.packages}}, AROUND
            pip.install([*requirements, *beside], pins, indices)
    except InstallerInterrupted:
        raise
    except Unavailable as refusal:
        ways = " or ".join(f"{name.upper()}_VERSION" for name in names)
        hint = "".join(
            f", or {name.upper()}_INDEX to an index that has it" for name in names if request.gpu is not None
        )
        what = ", ".join(requirements).replace("==", " ")
        raise Unavailable(f"{what} cannot be installed ({refusal}); set {ways} to another version{hint}") from refusal
    _note(names, request, pins)
    return [f"{', '.join(names)}: {remark}"] if remark else []


def _requirement(name: str, request: InstallRequest) -> str:
    chosen = DISTRIBUTIONS[name]
    package = chosen.cpu if request.gpu is None else chosen.gpu
    return request.places.get(f"{name.upper()}_REQUIREMENT") or f"{package}=={request.version(name)}"


def _beside(names: list[str], request: InstallRequest) -> list[str]:
    """Companions, with the versions that are asked for, and what no package declares."""
    wanted = [
        f"{package}=={request.packages[package]}" if package in request.packages else package
        for name in names
        for package in DISTRIBUTIONS[name].companions_in(request.modes)
    ]
    limits = [limit for name in names for limit in DISTRIBUTIONS[name].limits_of(request.version(name))]
    return [*wanted, *(limit for limit in limits if not locks.names([limit]) & request.packages.keys())]


def _index(name: str, request: InstallRequest) -> str:
    """Address of the additional index that has the framework, "" if none is needed."""
    places = request.places
    if index := places.get(f"{name.upper()}_INDEX"):
        return index
    if request.gpu is None or f"{name.upper()}_REQUIREMENT" in places or (name == "torch" and pip.by_uv()):
        return ""
    return DISTRIBUTIONS[name].index_of(request.version(name), request.gpu)


def _pins(names: list[str], request: InstallRequest, suite: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The versions of what comes with the frameworks, without their own; a remark on how they were chosen."""
    own = {canonicalize_name(package) for name in names for package in DISTRIBUTIONS[name].packages}
    pins: Mapping[str, str] = {}
    remark = ""
    if request.pinned:
        pins = locks.read(names[0] if len(names) == 1 else locks.ALL)
    elif len(names) == 1 and not any(variable.endswith("_REQUIREMENT") for variable in request.places):
        (name,) = names
        package, wanted = DISTRIBUTIONS[name].cpu, request.version(name)
        try:
            pins = uv.of_its_time(
                package, wanted, [f"{package}=={wanted}", *_beside(names, request)], request.packages, suite
            )
        except InstallerInterrupted:
            raise
        except Unavailable as refusal:
            remark = f"{NEWEST} ({refusal})"
    else:
        remark = NEWEST
    return {package: version for package, version in {**pins, **request.packages}.items() if package not in own}, remark


# ---------------------------------------------------------------- what was installed here before


def _marker(names: list[str]) -> Path:
    return Path(sys.prefix, f"conformance-{'-'.join(sorted(names))}.json")


def _note(names: list[str], request: InstallRequest, pins: Mapping[str, str]) -> None:
    """Notes the request and the installed packages, where this environment can be written to."""
    own = {package for name in names for package in DISTRIBUTIONS[name].packages}
    here = {package: version for package in own if (version := installed(package))}
    with suppress(OSError):
        _marker(names).write_text(
            json.dumps({"request": _request_document(request), "pins": {**pins, **here}}), encoding="utf-8"
        )


def _request_document(request: InstallRequest) -> dict[str, Any]:
    places = {name: redacted(place) for name, place in request.places.items()}
    return {**asdict(replace(request, places=places)), "modes": [*request.modes]}


def _there(names: list[str], request: InstallRequest, requirements: list[str]) -> bool:
    """Whether all that is asked for is installed: as it was noted, or by the requirements where nothing is noted."""
    try:
        noted = json.loads(_marker(names).read_text("utf-8"))
        return bool(noted["request"] == _request_document(request) and not locks.deviations(noted["pins"]))
    except (OSError, ValueError, KeyError):
        return not request.places and all(
            locks.satisfied(requirement)
            for requirement in [*requirements, *(f"{name}=={version}" for name, version in request.packages.items())]
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
