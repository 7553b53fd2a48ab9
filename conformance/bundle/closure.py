"""What wheels require of each other on another Python, whose markers pip evaluates for its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename


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
