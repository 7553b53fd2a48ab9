"""Widens or narrows exclusions to a version that was judged."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.version import Version

from conformance.known_failures.entries import Known
from conformance.known_failures.exclusions import Exclusion
from conformance.known_failures.judged_series import Judged, Place
from conformance.known_failures.toml_edit import Part
from conformance.known_failures.version_ranges import contains, rewritten
from conformance.known_failures.widening import judged_elsewhere, means, versions_of


@dataclass(frozen=True)
class ExclusionUpdate:
    """The exclusions of an adapter's file at a version.

    Programs that meet an exclusion are not run, so that records say nothing about it. It applies at the version if an
    expectation of its finding does; if the finding has none in the records' series, it applies as in the nearest judged
    series.

    Attributes:
        known: content of the file.
        text: of the file, with its updated expectations.
        version: that the records judge.
        places: devices and modes of the records.
        before, judged: judged series without the records and with them.
    """

    known: Known
    text: str
    version: str
    places: Sequence[tuple[str, str]]
    before: Judged
    judged: Judged

    def parts(self) -> dict[int, tuple[Part, ...]]:
        """The exclusions that change, by position; no part for one that would apply at no judged version.

        Raises:
            ValueError: no specifier can express a change.
        """
        every = {place: self._updated(each) for place, each in enumerate(self.known.exclusions)}
        return {n: parts for n, parts in every.items() if parts != (Part(self.known.exclusions[n].versions),)}

    @cached_property
    def _expectations(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = tomllib.loads(self.text).get("expectation", [])
        return entries

    def _updated(self, exclusion: Exclusion) -> tuple[Part, ...]:
        here = [where for where in self.places if means(exclusion.device, exclusion.mode, where)]
        versions = versions_of(self.judged, exclusion.device, exclusion.mode)
        former = {each for each in versions if contains(exclusion.versions, each)}
        applies = bool(here) and self._applies(exclusion, here)
        others = judged_elsewhere(exclusion.device, exclusion.mode, self.version, self.places, self.before)
        if not here or applies == (self.version in former) or (others and not applies):
            return (Part(exclusion.versions),)
        wanted = former | {self.version} if applies else former - {self.version}
        return (Part(rewritten(exclusion.versions, wanted, versions)),) if wanted else ()

    def _applies(self, exclusion: Exclusion, here: Sequence[tuple[str, str]]) -> bool:
        own = [each for each in self.known.expectations if each.finding == exclusion.finding]
        if any(means(each.device, each.mode, where) for each in own for where in here):
            return any(
                entry["finding"] == exclusion.finding.id
                and contains(entry["versions"], self.version)
                and means(entry.get("device", "*"), entry.get("mode", "*"), where)
                for entry in self._expectations
                for where in here
            )
        nearest = (Place(Version(self.version), *where, self.before) for where in here)
        return any(place.bearing(exclusion.versions, exclusion.device, exclusion.mode) is not None for place in nearest)
