"""Versions that a user names, compared with the releases that an index has."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from conformance.sweep.index import Release
from results.record.files import RecordError


def check_release(package: str, wanted: Version, releases: Mapping[Version, Release]) -> None:
    """Refuses a version that no index has.

    Raises:
        RecordError: no index has it; the message names the next one.
    """
    if Version(wanted.public) not in releases and wanted not in releases:
        next_one = min((version for version in releases if version >= wanted), default=max(releases))
        raise RecordError(f"{package} {wanted}", "no index has it", f"the next one is {next_one}")
