"""The series that have snapshots of known failures, and the search for those nearest to a run.

A series is a version on a device in a mode; one with a snapshot is judged. Any other series takes the snapshot of the
nearest judged one: it has the nearest mode and device and, of these, the version that differs only in its local label,
else the next lower version, else the next higher one (docs/adapters.md, "Known failures").
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


def join_ways(mode: str, ways: Iterable[str]) -> str:
    """Return the mode of a series: the framework's mode, followed by the ways."""
    return _WAY.join((mode, *ways))


def split_ways(mode: str) -> tuple[str, list[str]]:
    """Return the mode of a series, split into the framework's mode and the ways."""
    framework_mode, *ways = mode.split(_WAY)
    return framework_mode, ways


def drop_ways(mode: str) -> str:
    """Return the framework's mode in the mode of a series."""
    return split_ways(mode)[0]


def parse_version(framework: str, version: str) -> Version:
    """Return a comparable version.

    Raises:
        ValueError: the version does not follow PEP 440.
    """
    try:
        return Version(version)
    except InvalidVersion:
        raise ValueError(f"{framework}: version {version!r} is not a PEP 440 version") from None


class _Remoteness(NamedTuple):
    """Distance of the judged series of one device and mode from a run; the first field that differs decides.

    Attributes:
        mode_index: index of the mode among the framework's modes.
        negative_count: minus the number of series.
        device, mode: break ties.
    """

    other_mode: bool
    other_mode_without_ways: bool
    other_device: bool
    other_version: bool
    mode_index: int
    is_accelerator: bool
    negative_count: int
    device: str
    mode: str


@dataclass(frozen=True)
class Position:
    """The series of a run among the judged ones.

    Attributes:
        version, device, mode: the series of the run.
        judged: the series with a snapshot; if there are none, the run's own counts as judged.
        modes: the framework's modes, the default first.
    """

    version: Version
    device: str
    mode: str
    judged: tuple[VersionSeries, ...]
    modes: tuple[str, ...] = ()

    @cached_property
    def confirmed(self) -> bool:
        """Whether known failures are strict: the run's series is judged, or none is."""
        return not self.judged or (self.is_here(self.sources[0]) and self._has_version(self.sources[0]))

    @cached_property
    def sources(self) -> tuple[VersionSeries, ...]:
        """The judged series whose snapshots apply: the nearest and, if its version differs, one on the other side."""
        if not self.judged:
            return ()
        candidates = sorted(self._nearest_group(), key=lambda series: Version(series.version))
        for series in candidates:
            if self._has_version(series):
                return (series,)
        below = [series for series in candidates if Version(series.version) < self.version][-1:]
        above = [series for series in candidates if Version(series.version) > self.version][:1]
        other_builds = [series for series in below + above if Version(series.version).public == self.version.public]
        nearest = (other_builds or below or above)[0]
        return nearest, *(series for series in below + above if series != nearest)

    def label(self, series: VersionSeries) -> str:
        """Return the name of a judged series: only its version if device and mode are those of the run."""
        return series.version if self.is_here(series) else str(series)

    def is_here(self, series: VersionSeries) -> bool:
        """Return whether a judged series has the device and mode of the run, with the run's ways or without any."""
        return series.device == self.device and series.mode in (self.mode, drop_ways(self.mode))

    def _nearest_group(self) -> list[VersionSeries]:
        """Return the judged series of one device and mode, the nearest to the run."""
        groups: dict[tuple[str, str], list[VersionSeries]] = {}
        for series in self.judged:
            groups.setdefault((series.device, series.mode), []).append(series)

        def remoteness(group: list[VersionSeries]) -> _Remoteness:
            device, mode = group[0].device, group[0].mode
            return _Remoteness(
                other_mode=mode != self.mode,
                other_mode_without_ways=mode != drop_ways(self.mode),
                other_device=device != self.device,
                other_version=not any(map(self._has_version, group)),
                mode_index=self.modes.index(mode) if mode in self.modes else len(self.modes),
                is_accelerator=device != "cpu",
                negative_count=-len(group),
                device=device,
                mode=mode,
            )

        return min(groups.values(), key=remoteness)

    def _has_version(self, series: VersionSeries) -> bool:
        judged = Version(series.version)
        return judged == (self.version if judged.local else Version(self.version.public))
