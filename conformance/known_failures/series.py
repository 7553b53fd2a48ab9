"""Judged series of an adapter, those with a snapshot of known failures, and those nearest to a run.

A series is a version on a device in a mode. For an unjudged one the snapshot of the nearest judged one is taken. The
nearest one is chosen by, in this order:

1. the same mode before another one, then the same device before another one;
2. the same version before another one;
3. the mode that the framework names first, then the CPU, then the mode that was judged in most versions;
4. of the versions judged there: one that differs in its local label alone, else the highest below, else the lowest
   above.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from packaging.version import InvalidVersion, Version

WAY = "+"
"""Separates a mode from the ways of a run that are not the default ones."""


@dataclass(frozen=True)
class VersionSeries:
    """A version of a framework on a device, as the user asked for it, in a mode."""

    version: str
    device: str
    mode: str

    def __str__(self) -> str:
        return f"{self.version} {self.device} {self.mode}"


def parsed(framework: str, version: str) -> Version:
    """Return a comparable version.

    Raises:
        ValueError: it is none of PEP 440.
    """
    try:
        return Version(version)
    except InvalidVersion:
        raise ValueError(f"{framework}: version {version!r} is not a PEP 440 version") from None


@dataclass(frozen=True)
class Position:
    """A series among the judged ones.

    Attributes:
        version, device, mode: the series that is asked for.
        judged: those with a snapshot; without any, the series counts as judged.
        modes: of the framework, the default first.
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

    @property
    def is_of_release(self) -> bool:
        """Whether the nearest judged series is of this version, local labels overlooked."""
        return bool(self.sources) and Version(self.sources[0].version).public == self.version.public

    @property
    def nearest(self) -> str:
        """The judged series whose snapshot is taken."""
        return self.label(self.sources[0]) if self.judged else ""

    @cached_property
    def sources(self) -> tuple[VersionSeries, ...]:
        """The judged series whose snapshots apply, the nearest first: another one is on the version's other side."""
        if not self.judged:
            return ()
        groups: dict[tuple[str, str], list[VersionSeries]] = {}
        for series in self.judged:
            groups.setdefault((series.device, series.mode), []).append(series)

        def distance(group: list[VersionSeries]) -> tuple[bool, bool, bool, bool, int, bool, int, str, str]:
            device, mode = group[0].device, group[0].mode
            order = self.modes.index(mode) if mode in self.modes else len(self.modes)
            another = mode != self.mode, mode != self._plain_mode, device != self.device
            return *another, not any(map(self._has_version, group)), order, device != "cpu", -len(group), device, mode

        nearest = min(groups.values(), key=distance)
        group = sorted(nearest, key=lambda series: Version(series.version))
        same = [series for series in group if self._has_version(series)]
        if same:
            return (same[0],)
        below = [series for series in group if Version(series.version) < self.version][-1:]
        above = [series for series in group if Version(series.version) > self.version][:1]
        alike = [series for series in below + above if Version(series.version).public == self.version.public]
        first = (alike or below or above)[0]
        return first, *(series for series in below + above if series != first)

    def label(self, series: VersionSeries) -> str:
        """Name a judged series: its version alone where device and mode are the same."""
        return series.version if self.is_here(series) else str(series)

    def is_here(self, series: VersionSeries) -> bool:
        """Whether a judged series has this device and mode, ways overlooked."""
        return series.device == self.device and series.mode in (self.mode, self._plain_mode)

    @property
    def _plain_mode(self) -> str:
        return self.mode.partition(WAY)[0]

    def _has_version(self, series: VersionSeries) -> bool:
        judged = Version(series.version)
        return judged == (self.version if judged.local else Version(self.version.public))


def merged(first: Iterable[VersionSeries], second: Iterable[VersionSeries]) -> tuple[VersionSeries, ...]:
    """Return the series of both, without repetition."""
    return tuple(dict.fromkeys([*first, *second]))
