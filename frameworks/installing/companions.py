"""What goes with another version of a framework: by what packages declare, and by what there was in its time.

Companions, and whatever else comes with the framework, are the newest versions that were uploaded before the next
release of the framework appeared and that agree with each other by their declared requirements. What the suite itself
computes with, such as NumPy, stays as it is locked wherever those requirements admit it, so that a comparison with the
pinned version is about the framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from frameworks.installing import pip
from frameworks.installing.distributions import Distribution, Unavailable
from frameworks.installing.locks import names
from frameworks.installing.pip import Resolved, Undated

_FIRST = date(2016, 1, 1)
"""None of the frameworks was on an index with dates before."""

ON_NUMPY = ("autograd", "ml-dtypes", "scikit-learn", "scipy")
"""What every environment has that is built on NumPy, and may have to change with it."""

NEWEST = "nothing of its time goes with what is asked for: companions are the newest that declare to go with it"
UNDATED = "the index gives no upload dates: companions are the newest that declare to go with it"


@dataclass(frozen=True)
class Choice:
    """What goes with a version of a framework.

    Attributes:
        pins: versions by normalized name, the framework's own included.
        remark: what a user should know about how they were chosen, or "".
    """

    pins: Mapping[str, str]
    remark: str = ""


def choose(
    chosen: Distribution, wanted: str, requirement: str, asked: Mapping[str, str], suite: Mapping[str, str]
) -> Choice:
    """Chooses the companions of a version.

    Args:
        wanted: the version, "" if nothing says it before it is installed.
        requirement: what takes the place of the framework's package, "" for the package itself.
        asked: versions that the user asks for by normalized name, besides the framework's.
        suite: locked versions of what every environment has.

    Raises:
        Unavailable: nothing goes with it, or it is not there.
    """
    limits = [limit for limit in chosen.limits_of(wanted or chosen.pinned) if not names([limit]) & asked.keys()]
    requirements = [requirement or f"{chosen.cpu}=={wanted}", *chosen.companions, *limits]
    try:
        before = next_release(chosen.cpu, wanted, pip.remote()) if wanted else None
    except Unavailable:
        pins, remark = {}, UNDATED
    else:
        pins, remark = _of_its_time(requirements, limits, asked, suite, before), NEWEST
    if pins:
        return Choice(pins)
    return Choice(_with_suite(pip.resolve(requirements, asked), limits, asked, suite), remark)


def _of_its_time(
    requirements: list[str], limits: list[str], asked: Mapping[str, str], suite: Mapping[str, str], before: date | None
) -> dict[str, str]:
    """What was uploaded in time and goes with what is asked for, which may be newer; {} if there is no such choice."""
    environment = pip.remote()
    with suppress(Unavailable):
        resolved = pip.resolve(requirements, asked, before=before, environment=environment)
        return _with_suite(resolved, limits, asked, suite)
    if before and asked:
        with suppress(Unavailable):
            resolved = pip.resolve(requirements, {}, before=before, environment=environment)
            pins = {**_with_suite(resolved, limits, asked, suite), **asked}
            resolved = pip.resolve(requirements, pins, environment=environment)
            return {name: package.version for name, package in resolved.items()}
    return {}


def next_release(package: str, wanted: str, environment: Mapping[str, str]) -> date | None:
    """The first day on which a newer release than the wanted one was there in the morning; None if there is none.

    Raises:
        Undated: the index gives no dates.
        Unavailable: there is no such package.
    """

    def newer(day: date) -> bool:
        try:
            known = pip.versions(package, before=day, environment=environment)
        except Undated:
            raise
        except Unavailable:
            return False
        return any(version > Version(wanted) for version in known)

    low, high = _FIRST, datetime.now(UTC).date() + timedelta(days=1)
    if not any(version > Version(wanted) for version in pip.versions(package, before=high, environment=environment)):
        return None
    while high - low > timedelta(days=1):
        middle = low + (high - low) // 2
        low, high = (low, middle) if newer(middle) else (middle, high)
    return high


def _with_suite(
    resolved: Mapping[str, Resolved], limits: list[str], asked: Mapping[str, str], suite: Mapping[str, str]
) -> dict[str, str]:
    """The resolved versions, those of the suite in their places where everything that was resolved admits them."""
    declared = [Requirement(text) for package in resolved.values() for text in package.requires]
    declared = [*map(Requirement, limits), *(each for each in declared if _applies(each))]
    pins = {name: package.version for name, package in resolved.items()}
    for name in sorted(pins.keys() & suite.keys() - asked.keys(), key=lambda name: name != "numpy"):
        if name in ON_NUMPY and pins.get("numpy") != suite.get("numpy"):
            continue
        wishes = [each.specifier for each in declared if canonicalize_name(each.name) == name]
        if all(wish.contains(suite[name], prereleases=True) for wish in wishes):
            pins[name] = suite[name]
    return pins


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})
