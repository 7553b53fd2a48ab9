"""Widens or narrows the judged series of an entry or exclusion, by versions, devices and modes or by another entry."""

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.version import Version

from conformance.known_failures.entries import Exclusion, Expectation, Known
from conformance.known_failures.judged_series import Judged, Place, every_version
from conformance.known_failures.toml_edit import Part
from conformance.known_failures.version_ranges import contains, rewritten
from conformance.spec.findings import named


def means(device: str, mode: str, where: tuple[str, str]) -> bool:
    """Whether an entry names this device and mode."""
    return named(device, where[0]) and named(mode, where[1])


def versions_of(judged: Judged, device: str, mode: str) -> tuple[str, ...]:
    """Judged versions on an entry's devices in its modes."""
    return every_version({where: versions for where, versions in judged.items() if means(device, mode, where)})


def judged_elsewhere(
    device: str, mode: str, version: str, here: Collection[tuple[str, str]], before: Judged
) -> list[str]:
    """Other series of an entry in which a version was judged before."""
    return [
        " ".join(where)
        for where, versions in before.items()
        if where not in here and version in versions and means(device, mode, where)
    ]


def alone(version: str, where: tuple[str, str], judged: Judged, cases: tuple[str, ...] | None) -> Part:
    """An entry for a single series."""
    return Part(rewritten(f"=={version}", {version}, judged[where]), cases, *where)


def widened(
    entry: Expectation, versions: str, version: str, new: Sequence[tuple[str, str]], judged: Judged
) -> Part | None:
    """The entry, widened to a version on more devices or in more modes; None if this would add another judged series.

    Args:
        versions: the entry's versions on its present devices, in its present modes.
        new: the further devices and modes.
        judged: every judged series, the new ones among them.
    """
    device, mode = entry.device, entry.mode
    for each in new:
        device, mode = _with(device, each[0]), _with(mode, each[1])
    wanted = _judged(judged, entry.device, entry.mode, versions) | {(where, version) for where in new}
    try:
        text = rewritten(versions, {each for _, each in wanted}, versions_of(judged, device, mode))
    except ValueError:
        return None
    changed = device if device != entry.device else None, mode if mode != entry.mode else None
    return Part(text, None, *changed) if _judged(judged, device, mode, text) == wanted else None


def narrowed(entry: Expectation, version: str, gone: Sequence[tuple[str, str]], judged: Judged) -> Part | None:
    """The entry, narrowed to exclude these devices and modes at a version; None if neither its devices nor its modes
    can express this."""
    wanted = _judged(judged, entry.device, entry.mode, entry.versions) - {(where, version) for where in gone}
    devices = ", ".join(dict.fromkeys(where[0] for where in judged if where in {each for each, _ in wanted}))
    modes = ", ".join(dict.fromkeys(where[1] for where in judged if where in {each for each, _ in wanted}))
    for part in (Part(entry.versions, device=devices), Part(entry.versions, mode=modes)):
        if _judged(judged, part.device or entry.device, part.mode or entry.mode, entry.versions) == wanted:
            return part
    return None


def _judged(judged: Judged, device: str, mode: str, versions: str) -> set[tuple[tuple[str, str], str]]:
    """The judged series in which an entry applies."""
    meant = ((where, each) for where, every in judged.items() if means(device, mode, where) for each in every)
    return {(where, each) for where, each in meant if contains(versions, each)}


def _with(words: str, name: str) -> str:
    return words if named(words, name) else f"{words}, {name}"


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
