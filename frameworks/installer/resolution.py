"""The lock of an environment for a framework at some version: what to install, and the version of each package."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from frameworks.installer import locks, pip, uv
from frameworks.installer.distributions import DISTRIBUTIONS, Distribution, Unavailable, bare, read_distribution

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@dataclass(frozen=True)
class EnvironmentRequest:
    """What an environment is asked to have.

    Attributes:
        framework: an adapter that says what to install.
        version: of the framework.
        mode: of the adapter; "" for its first.
        packages: versions of other packages by normalized name.
        gpu: newest CUDA version that the driver runs, "" where it does not say, None for a build for CPUs.
        varying: the package whose time decides, next to the framework's; "" for the framework alone.
        suite: whether the suite's own packages are installed too.
    """

    framework: str
    version: str
    mode: str = ""
    packages: Mapping[str, str] | None = None
    gpu: str | None = None
    varying: str = ""
    suite: bool = True


@dataclass(frozen=True)
class Lock:
    """An environment's requirements and the version of each package.

    Attributes:
        requirements: what is installed by name.
        pins: version of each package by normalized name.
        indexes: addresses of additional indexes.
        remark: how the versions were chosen, where that is not by their time; "" else.
    """

    requirements: tuple[str, ...]
    pins: Mapping[str, str]
    indexes: tuple[str, ...] = ()
    remark: str = ""

    @property
    def name(self) -> str:
        """16 hexadecimal digits: digest of the requirements, the versions, the Python and the platform."""
        parts = [*self.requirements, "", *(f"{name}=={version}" for name, version in sorted(self.pins.items()))]
        parts += ["", platform.python_version(), sys.platform, platform.machine()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def distribution_of(framework: str) -> Distribution | None:
    """What an adapter (a name or an import path) says is to be installed; None if it says nothing.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    return DISTRIBUTIONS.get(framework) or read_distribution(framework)


def package_of(framework: str) -> str:
    """The name of a framework's package for CPUs, without extras; "" if its adapter says nothing."""
    chosen = distribution_of(framework)
    return "" if chosen is None else bare(chosen.cpu)


def suite_requirements() -> list[str]:
    """What the suite needs for a run: its groups `suite` and `run`."""
    groups: dict[str, Any] = tomllib.loads(_PROJECT.read_text("utf-8"))["dependency-groups"]
    return [*groups["suite"], *groups["run"]]


def requirements_of(wanted: EnvironmentRequest) -> tuple[list[str], list[str]]:
    """The requirements of an environment, and the additional indexes that have them.

    Raises:
        Unavailable: every wheel needs a newer driver.
    """
    chosen = distribution_of(wanted.framework)
    if chosen is None:
        raise Unavailable(f"{wanted.framework} says nothing of what is to be installed")
    package = chosen.cpu if wanted.gpu is None else chosen.gpu
    asked = dict(wanted.packages or {})
    named = chosen.companions_in([wanted.mode])
    beside = [f"{each}=={asked[name]}" if (name := _normal(each)) in asked else each for each in named]
    beside += [f"{name}=={version}" for name, version in asked.items() if name not in {*map(_normal, named)}]
    limits = [limit for limit in chosen.limits_of(wanted.version) if not locks.names([limit]) & asked.keys()]
    index = "" if wanted.gpu is None else chosen.index_of(wanted.version, wanted.gpu)
    suite = suite_requirements() if wanted.suite else []
    return [f"{package}=={wanted.version}", *beside, *limits, *suite], [index] if index else []


def resolve(wanted: EnvironmentRequest) -> Lock:
    """Resolve an environment: the newest versions of its time, by uv; where uv finds none, the newest by pip.

    Raises:
        Unavailable: there is no solution.
    """
    requirements, indexes = requirements_of(wanted)
    suite, packages = locks.read(locks.SUITE), dict(wanted.packages or {})
    package = package_of(wanted.framework)
    fixed = packages | {canonicalize_name(package): wanted.version}
    remark = ""
    try:
        pins = uv.companions(package, wanted.version, requirements, fixed, suite, "--python", sys.executable)
    except Unavailable as refusal:
        remark = f"the newest versions that go with each other, whatever their time ({refusal})"
        try:
            pins = _by_pip(requirements, suite, indexes)
        except Unavailable:
            pins = _by_pip(requirements, {}, indexes)
    return Lock(tuple(requirements), _without_labels(pins), tuple(indexes), remark)


def _by_pip(requirements: Sequence[str], pins: Mapping[str, str], indexes: Sequence[str]) -> dict[str, str]:
    """What pip would install for requirements, versions by normalized name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        program = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--report", str(report)]
        pip.run(program, requirements, pins, indexes)
        packages = [entry["metadata"] for entry in json.loads(report.read_bytes())["install"]]
    return {canonicalize_name(package["name"]): str(package["version"]) for package in packages}


def _without_labels(pins: Mapping[str, str]) -> dict[str, str]:
    """The versions without local labels such as "+cpu", which another platform's build need not have."""
    return {name: version.partition("+")[0] for name, version in pins.items()}


def _normal(package: str) -> str:
    return str(canonicalize_name(bare(package)))
