"""Installs frameworks with pip: at the pinned versions under their lock, or at the versions that the environment names.

    python -m frameworks.install torch

Variables, for NAME one of TORCH, TF, PADDLE and JAX:

- NAME_VERSION: the framework's version; its companions are then those that go with it.
- PACKAGE_VERSION (KERAS_VERSION, FLAX_VERSION, NUMPY_VERSION, ...): the version of anything that comes with it.
- NAME_INDEX: address of one more index to look for the framework on.
- NAME_REQUIREMENT: what to install in the framework's place: a wheel's path or address, or a requirement.

An empty variable is one that is not set.

Where the NVIDIA driver answers, the build for GPUs is chosen, from the index where it is. Several frameworks are
installed next to each other under a lock of their own. Exit status 0, or 2 with one line if something is not to be had.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from frameworks.installing import companions, locks, pip
from frameworks.installing.distributions import DISTRIBUTIONS, Distribution, Unavailable, bare
from frameworks.installing.locks import installed_version as installed
from frameworks.installing.wishes import Wish, redacted, wishes

__all__ = ["DISTRIBUTIONS", "install", "installed_version", "main"]

_NEWEST = "versions are the newest that declare to go with each other"


def main(arguments: list[str]) -> int:
    """Installs frameworks; returns the exit status."""
    if not arguments or len(set(arguments)) < len(arguments) or not DISTRIBUTIONS.keys() >= set(arguments):
        print(f"usage: python -m frameworks.install {{{','.join(DISTRIBUTIONS)}}} ...", file=sys.stderr)
        return 2
    try:
        wish = wishes(arguments)
        for line in install(arguments, wish):
            print(redacted(line), file=sys.stderr)
    except Unavailable as refusal:
        print(redacted(str(refusal)), file=sys.stderr)
        return 2
    return 0


def installed_version(framework: str) -> str | None:
    """The installed version of a built-in framework's package, for the CPU or a GPU, without its local label."""
    chosen = DISTRIBUTIONS[framework]
    here = installed(bare(chosen.cpu)) or installed(bare(chosen.gpu))
    return here.partition("+")[0] if here else None


def install(names: list[str], wish: Wish) -> list[str]:
    """Installs frameworks unless they are there already, with all that goes with them; returns remarks for the user.

    Raises:
        Unavailable: something is not to be had.
    """
    requirements = [_requirement(name, wish) for name in names]
    beside = _beside(names, wish)
    if _there(names, wish, [*requirements, *beside]):
        return []
    if sys.stderr.isatty():
        print(redacted(f"installing {', '.join(requirements)}"), file=sys.stderr)
    suite = locks.read(locks.SUITE)
    try:
        pins, remark = _pins(names, wish, suite)
        if pins.get("numpy") != suite.get("numpy"):
            beside += [package for package in companions.ON_NUMPY if installed(package)]
        pip.install([*requirements, *beside], pins, [index for name in names if (index := _index(name, wish))])
    except Unavailable as refusal:
        ways = " or ".join(f"{name.upper()}_VERSION" for name in names)
        hint = "".join(f", or {name.upper()}_INDEX to an index that has it" for name in names if wish.gpu is not None)
        what = ", ".join(requirements).replace("==", " ")
        raise Unavailable(f"{what} cannot be installed ({refusal}); set {ways} to another version{hint}") from refusal
    _note(names, wish, pins)
    return [f"{', '.join(names)}: {remark}"] if remark else []


def _requirement(name: str, wish: Wish) -> str:
    chosen = DISTRIBUTIONS[name]
    package = chosen.cpu if wish.gpu is None else chosen.gpu
    return wish.places.get(f"{name.upper()}_REQUIREMENT") or f"{package}=={wish.version(name)}"


def _beside(names: list[str], wish: Wish) -> list[str]:
    """Companions, with the versions that are asked for, and what no package declares."""
    wanted = [
        f"{package}=={wish.packages[package]}" if package in wish.packages else package
        for name in names
        for package in DISTRIBUTIONS[name].companions
    ]
    limits = [limit for name in names for limit in DISTRIBUTIONS[name].limits_of(wish.version(name))]
    return [*wanted, *(limit for limit in limits if not locks.names([limit]) & wish.packages.keys())]


def _index(name: str, wish: Wish) -> str:
    """Address of the index besides the main one that has the framework, "" if none is needed."""
    places = wish.places
    if index := places.get(f"{name.upper()}_INDEX"):
        return index
    if wish.gpu is None or f"{name.upper()}_REQUIREMENT" in places:
        return ""
    return DISTRIBUTIONS[name].index_of(wish.version(name), wish.gpu)


def _pins(names: list[str], wish: Wish, suite: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The versions of everything that comes with the frameworks, without their own; a remark on how they were chosen.

    Raises:
        Unavailable: nothing goes with a version, or it is not there.
    """
    elsewhere = [name for name in names if f"{name.upper()}_REQUIREMENT" in wish.places]
    own = {canonicalize_name(bare(package)) for name in names for package in _packages(DISTRIBUTIONS[name])}
    if wish.pinned:
        pins = locks.read(names[0] if len(names) == 1 else locks.ALL)
        remark = "" if pins else f"there is no lock for this Python and platform: {_NEWEST}"
    elif len(names) == 1:
        (name,) = names
        requirement = _requirement(name, wish) if elsewhere else ""
        version = _version_of(requirement) if elsewhere else wish.version(name)
        choice = companions.choose(DISTRIBUTIONS[name], version, requirement, wish.packages, suite)
        pins, remark = {**choice.pins}, choice.remark
    else:
        pins, remark = {}, f"several frameworks, not all of them pinned: {_NEWEST}"
    return {package: version for package, version in {**pins, **wish.packages}.items() if package not in own}, remark


def _packages(chosen: Distribution) -> tuple[str, str]:
    return chosen.cpu, chosen.gpu


def _version_of(requirement: str) -> str:
    """The version in the name of a wheel, or of "NAME==VERSION"; "" where nothing says it before it is installed."""
    name = unquote(urlsplit(requirement).path).rpartition("/")[2]
    try:
        return parse_wheel_filename(name)[1].public
    except InvalidWheelFilename:
        return match[1] if (match := re.fullmatch(r"[\w.\[\]-]+==([\w.+!-]+)", requirement)) else ""


# ---------------------------------------------------------------- what was installed here before


def _marker(names: list[str]) -> Path:
    return Path(sys.prefix, f"conformance-{'-'.join(sorted(names))}.json")


def _note(names: list[str], wish: Wish, pins: Mapping[str, str]) -> None:
    """Notes what was asked for and what it came to, where this environment can be written to."""
    own = {bare(package) for name in names for package in _packages(DISTRIBUTIONS[name])}
    here = {package: version for package in own if (version := installed(package))}
    with suppress(OSError):
        _marker(names).write_text(json.dumps({"wish": _shown(wish), "pins": {**pins, **here}}), encoding="utf-8")


def _shown(wish: Wish) -> dict[str, Any]:
    return asdict(replace(wish, places={name: redacted(place) for name, place in wish.places.items()}))


def _there(names: list[str], wish: Wish, requirements: list[str]) -> bool:
    """Whether all that is asked for is installed: as it was noted, or by the requirements where nothing is noted."""
    try:
        noted = json.loads(_marker(names).read_text("utf-8"))
        return bool(noted["wish"] == _shown(wish) and not locks.deviations(noted["pins"]))
    except (OSError, ValueError, KeyError):
        return not wish.places and all(
            locks.satisfied(requirement)
            for requirement in [*requirements, *(f"{name}=={version}" for name, version in wish.packages.items())]
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
