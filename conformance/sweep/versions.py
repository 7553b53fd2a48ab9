"""Versions that a plan asks for: exact ones, ranges, the latest N, and the newest patch of each minor version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.sweep.index import Release
from results.record.files import RecordError

_LATEST = re.compile(r"latest(?: ([1-9][0-9]{0,2}))?")
_MINOR = re.compile(r"minor (.+)")


@dataclass(frozen=True)
class VersionRule:
    """One entry of a plan's list of versions.

    Attributes:
        exact: the version, if it is one.
        range: versions that count.
        latest: how many of the newest ones, 0 for all.
        minor: whether only the newest patch of each minor version counts.
    """

    text: str
    exact: str = ""
    range: str = ""
    latest: int = 0
    minor: bool = False


def read_rule(text: str) -> VersionRule:
    """An entry of a plan: "0.9.2", ">=0.6,<0.9", "latest", "latest 3" or "minor >=3.3".

    Raises:
        ValueError: it is none of these.
    """
    if match := _LATEST.fullmatch(text):
        return VersionRule(text, latest=int(match[1] or 1))
    minor = _MINOR.fullmatch(text)
    try:
        if minor is None and re.match(r"[0-9]", text):
            return VersionRule(text, exact=str(Version(text)))
        wanted = minor[1] if minor else text
        if not wanted.strip():
            raise InvalidSpecifier
        return VersionRule(text, range=str(SpecifierSet(wanted)), minor=minor is not None)
    except (InvalidVersion, InvalidSpecifier):
        forms = "a version, a range such as >=0.6,<0.9, latest N, or minor RANGE"
        raise ValueError(f"got {text!r}, want {forms}") from None


def chosen(rules: Iterable[VersionRule], releases: Mapping[Version, Release]) -> list[str]:
    """The versions that the rules name, oldest first, each once; only exact ones may be yanked, missing or prereleases.

    Raises:
        ValueError: a rule other than an exact version fits no release.
    """
    result: dict[Version, str] = {}
    for rule in rules:
        if rule.exact:
            result[Version(rule.exact)] = rule.exact
            continue
        range_ = SpecifierSet(rule.range)
        fitting = [each for each in releases if range_.contains(each) and not each.is_prerelease]
        fitting = [each for each in fitting if not releases[each].yanked]
        if rule.minor:
            fitting = [*{each.release[:2]: each for each in sorted(fitting)}.values()]
        fitting = sorted(fitting)[-rule.latest :] if rule.latest else fitting
        if not fitting:
            raise ValueError(f"{rule.text!r} fits no release")
        result |= {each: str(each) for each in fitting}
    return [result[version] for version in sorted(result)]


def check_release(package: str, wanted: Version, releases: Mapping[Version, Release]) -> None:
    """Refuses a version that no index has.

    Raises:
        RecordError: no index has it; the message names the next one.
    """
    if Version(wanted.public) not in releases and wanted not in releases:
        next_one = min((version for version in releases if version >= wanted), default=max(releases))
        raise RecordError(f"{package} {wanted}", "no index has it", f"the next one is {next_one}")
