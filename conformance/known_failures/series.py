"""The series for which known failures are known, and which of them are nearest to a run.

A series is a version on a device in a mode. A series that is not judged takes the snapshot of the nearest judged
series: of the nearest mode and device, the version that differs in its local label alone, else the highest below, else
the lowest above (docs/adapters.md, "Known failures").
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

_WAY = "+"
"""Separator between a mode and the ways of a run that are not the default ones."""


@dataclass(frozen=True)
class VersionSeries:
    """A version of a framework on a device, as the user asked for it, in a mode."""

    version: str
    device: str
    mode: str

    def __str__(self) -> str:
        return f"{self.version} {self.device} {self.mode}"


def with_ways(mode: str, ways: Iterable[str]) -> str:
    """Return the mode of a series: a mode, and the ways that follow it."""
    return _WAY.join((mode, *ways))


def split_ways(mode: str) -> tuple[str, list[str]]:
    """Return a mode and the ways that follow it in the mode of a series."""
    own, *ways = mode.split(_WAY)
    return own, ways


def without_ways(mode: str) -> str:
    """Return a mode without the ways that follow it in the mode of a series."""
    return split_ways(mode)[0]


def parse_version(framework: str, version: str) -> Version:
    """Return a comparable version.

    Raises:
        ValueError: it is none of PEP 440.
    """
    try:
        return Version(version)
    except InvalidVersion:
        raise ValueError(f"{framework}: version {version!r} is not a PEP 440 version") from None


class _Remoteness(NamedTuple):
    """How far judged series of one device and mode are from a run; the first part that differs decides.

    Attributes:
        rank_of_mode: index of the mode among the framework's modes.
        fewer: number of series, negative.
        device, mode: decide where all else is equal.
    """

    other_mode: bool
    other_mode_without_ways: bool
    other_device: bool
    other_version: bool
    rank_of_mode: int
    accelerator: bool
    fewer: int
    device: str
    mode: str


@dataclass(frozen=True)
class Position:
    """A series among the judged ones.

    Attributes:
        version, device, mode: the series that is asked for.
        judged: the series with a snapshot; without any, the series that is asked for counts as judged.
        modes: the framework's modes, the default first.
    """

    version: Version
    device: str
    mode: str
    judged: tuple[VersionSeries, ...]
    modes: tuple[str, ...] = ()

    @cached_property
    def confirmed(self) -> bool:
        """Whether known failures are strict: the series was judged, or none was."""
        return not self.judged or (self.is_here(self.sources[0]) and self._has_version(self.sources[0]))

    @cached_property
    def sources(self) -> tuple[VersionSeries, ...]:
        """The judged series whose snapshots apply, the nearest first; the second is on the version's other side."""
        if not self.judged:
            return ()
        candidates = sorted(self._nearest_group(), key=lambda series: Version(series.version))
        for series in candidates:
            if self._has_version(series):
                return (series,)
        below = [series for series in candidates if Version(series.version) < self.version][-1:]
        above = [series for series in candidates if Version(series.version) > self.version][:1]
        other_builds = [one for one in below + above if Version(one.version).public == self.version.public]
        nearest = (other_builds or below or above)[0]
        return nearest, *(series for series in below + above if series != nearest)

    def label(self, series: VersionSeries) -> str:
        """Name a judged series: its version alone where device and mode are the same."""
        return series.version if self.is_here(series) else str(series)

    def is_here(self, series: VersionSeries) -> bool:
        """Return whether a judged series has this device and mode; ways do not count."""
        return series.device == self.device and series.mode in (self.mode, without_ways(self.mode))

    def _nearest_group(self) -> list[VersionSeries]:
        """Return the judged series of the nearest device and mode."""
        groups: dict[tuple[str, str], list[VersionSeries]] = {}
        for series in self.judged:
            groups.setdefault((series.device, series.mode), []).append(series)

        def remoteness(group: list[VersionSeries]) -> _Remoteness:
            device, mode = group[0].device, group[0].mode
            return _Remoteness(
                other_mode=mode != self.mode,
                other_mode_without_ways=mode != without_ways(self.mode),
                other_device=device != self.device,
                other_version=not any(map(self._has_version, group)),
                rank_of_mode=self.modes.index(mode) if mode in self.modes else len(self.modes),
                accelerator=device != "cpu",
                fewer=-len(group),
                device=device,
                mode=mode,
            )

        return min(groups.values(), key=remoteness)

    def _has_version(self, series: VersionSeries) -> bool:
        judged = Version(series.version)
        return judged == (self.version if judged.local else Version(self.version.public))
