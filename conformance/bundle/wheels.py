"""Downloads the wheels of a framework and of the suite for another machine, by pip.

pip evaluates markers for its own Python, so `closure` finds what wheels require of each other on the target's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from conformance.bundle.target import Target
from conformance.doctor.wheels import cuda_required
from frameworks.installer import locks, pip, uv
from frameworks.installer.distributions import DISTRIBUTIONS, Unavailable, bare
from frameworks.installer.resolution import EnvironmentRequest, package_of, requirements_of, suite_requirements

ROUNDS = 8
"""How often what is still missing is downloaded."""


def wanted_of(framework: str, version: str, modes: Sequence[str], target: Target) -> tuple[list[str], list[str]]:
    """The requirements of a bundle, the framework's own first, and additional indexes.

    Args:
        version: of the framework; "" for an adapter that installs nothing.

    Raises:
        Unavailable: every wheel of the framework needs a newer CUDA.
    """
    if not version:
        return suite_requirements(), []
    gpu = target.cuda or None
    result: dict[str, None] = {}
    indexes: list[str] = []
    for mode in modes or ("",):
        requirements, indexes = requirements_of(EnvironmentRequest(framework, version, mode, gpu=gpu))
        result |= dict.fromkeys(requirements)
    if given := os.environ.get(f"{framework.upper()}_INDEX"):
        indexes = [given]
    elif gpu is None and DISTRIBUTIONS[framework].cpu_index:
        indexes = [DISTRIBUTIONS[framework].cpu_index]
    return [*result], indexes


def download(framework: str, version: str, modes: Sequence[str], target: Target, folder: Path) -> list[Path]:
    """The wheels of the framework, of what comes with it and of the suite, sorted by name.

    Raises:
        Unavailable: a wheel is not available, or the build that is there is another one.
    """
    requirements, indexes = wanted_of(framework, version, modes, target)
    pins = _pins(framework, version, requirements, target)
    if version:
        package = str(canonicalize_name(bare(requirements[0].partition("==")[0])))
        _pip(folder, ["--no-deps", f"{package}=={version}"], {}, target, indexes)
        wheel = named(folder.glob("*.whl"))[package]
        _check_build(framework, wheel, target)
        pins[package] = str(parse_wheel_filename(wheel.name)[1])
    _pip(folder, requirements, pins, target, indexes if target.cuda else [])
    roots = [Requirement(each) for each in requirements]
    for _ in range(ROUNDS):
        wheels = named(folder.glob("*.whl"))
        needed, lacking = closure(roots, wheels, target.markers())
        if not lacking:
            return sorted(needed.values())
        for each in lacking:
            if old := wheels.get(str(canonicalize_name(each.name))):
                old.unlink()
        _pip(folder, ["--no-deps", *map(str, lacking)], pins, target, indexes if target.cuda else [])
    raise Unavailable(f"no wheels go together for Python {target.python}: {lacking[0]} is not met")


def _pins(framework: str, version: str, requirements: Sequence[str], target: Target) -> dict[str, str]:
    """The lock's versions on the target; those of its time, by uv, for another version of the framework."""
    markers = target.markers()
    if not version:
        return locks.read(locks.SUITE, markers)
    chosen = DISTRIBUTIONS[framework]
    own = {str(canonicalize_name(bare(each))) for each in (chosen.cpu, chosen.gpu)}
    if version == chosen.pinned:
        return {name: pin for name, pin in locks.read(framework, markers).items() if name not in own}
    suite, package = locks.read(locks.SUITE, markers), package_of(framework)
    try:
        pins = uv.of_its_time(package, version, requirements, {}, suite, None, *target.uv_words)
    except Unavailable:
        return suite
    return {name: pin.partition("+")[0] for name, pin in pins.items() if name not in own}


def _pip(folder: Path, words: Sequence[str], pins: Mapping[str, str], target: Target, indexes: Sequence[str]) -> None:
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={pin}\n" for name, pin in sorted(pins.items())), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--dest", str(folder), "--constraint", str(constraints)]
    beside = [word for index in indexes for word in ("--extra-index-url", index)]
    ended = subprocess.run(
        [*command, "--retries", "1", *target.words, *beside, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    constraints.unlink()
    if ended.returncode:
        raise Unavailable(f"no wheel for Python {target.python}: {_reason(ended)}")


def _reason(ended: subprocess.CompletedProcess[str]) -> str:
    """pip's reason in one line; what is asked for where nothing but constraints of pip's settings stand against it."""
    parts = [part for part in pip.reason(ended).split("; ") if "(constraint)" not in part]
    asked = [part.removeprefix("The user requested ") for part in parts]
    return f"{asked[0]} is not available" if len(asked) == 1 and asked != parts else "; ".join(parts)


def _check_build(framework: str, wheel: Path, target: Target) -> None:
    """Refuses a build for GPUs in a bundle for the CPU, and the other way round, where the wheel shows what it is."""
    version = str(parse_wheel_filename(wheel.name)[1])
    cuda = cuda_required(metadata_of(wheel), version)
    label = version.partition("+")[2]
    remedy = f"set {framework.upper()}_INDEX to an index that has the other build"
    if cuda and not target.cuda:
        raise Unavailable(f"{wheel.name} is for CUDA {cuda}; ask for it by --cuda {cuda}, or {remedy}")
    if target.cuda and (label == "cpu" or (cuda and cuda.split(".")[0] > target.cuda.split(".")[0])):
        what = f"for CUDA {cuda}" if cuda else "the build for the CPU"
        raise Unavailable(f"{wheel.name} is {what}, and --cuda is {target.cuda}; {remedy}")


def metadata_of(wheel: Path) -> Distribution:
    """The metadata of a wheel."""
    (result,) = distributions(path=[str(wheel)])
    return result


def named(wheels: Iterable[Path]) -> dict[str, Path]:
    """Wheels by the normalized name of their package."""
    return {str(parse_wheel_filename(wheel.name)[0]): wheel for wheel in wheels}


def closure(
    roots: Iterable[Requirement], wheels: Mapping[str, Path], markers: Mapping[str, str]
) -> tuple[dict[str, Path], list[Requirement]]:
    """The wheels that requirements need, and the requirements that no wheel meets.

    Args:
        wheels: by normalized name.
        markers: values of environment markers on the target.
    """
    waiting, seen = [*roots], set[tuple[str, str]]()
    needed: dict[str, Path] = {}
    lacking: dict[str, Requirement] = {}
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate(dict(markers)):
            continue
        name = str(canonicalize_name(requirement.name))
        wheel = wheels.get(name)
        if wheel is None or not requirement.specifier.contains(parse_wheel_filename(wheel.name)[1], prereleases=True):
            lacking[str(requirement)] = requirement
            continue
        needed[name] = wheel
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += _required(wheel, extra, markers)
    return needed, [*lacking.values()]


def _required(wheel: Path, extra: str, markers: Mapping[str, str]) -> list[Requirement]:
    """The requirements of a wheel that hold with an extra ("" for none)."""
    values = {**markers, "extra": extra}
    read = [Requirement(line) for line in metadata_of(wheel).requires or ()]
    applicable = [each for each in read if each.marker is None or each.marker.evaluate(values)]
    for each in applicable:
        each.marker = None
    return applicable
