"""Judged series of an adapter, and the expectations of series that nobody has judged yet.

A series is a version on a device in a mode. In an unjudged series the expectations of the nearest judged one apply.
The nearest one is chosen by, in this order:

1. the same mode before another one, then the same device before another one;
2. the same version before another one;
3. the device and mode that the file names first;
4. of the versions judged there: one that differs in its local label alone, else the highest below, else the lowest
   above.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.spec.findings import named
from conformance.spec.tables import Table

JUDGED = "judged"
"""Name of the table of judged series."""

Judged = Mapping[tuple[str, str], tuple[str, ...]]
"""Judged versions by device and mode, from the lowest to the highest."""


@dataclass(frozen=True)
class VersionSeries:
    """A version of a framework on a device, as the user asked for it, in a mode."""

    version: str
    device: str
    mode: str

    def __str__(self) -> str:
        return f"{self.version} {self.device} {self.mode}"


def parsed(framework: str, version: str) -> Version:
    """A comparable version.

    Raises:
        ValueError: it is none of PEP 440.
    """
    try:
        return Version(version)
    except InvalidVersion:
        raise ValueError(f"{framework}: version {version!r} is not a PEP 440 version") from None


@dataclass(frozen=True)
class Relevance:
    """How an entry applies to a run.

    Attributes:
        inferred_from: the judged version from which it is inferred, with device and mode if these differ; "" if the
            run's own series was judged.
        settled: whether the failure must occur; False between two judged versions that disagree, and if it is inferred
            from another device or mode.
    """

    inferred_from: str = ""
    settled: bool = True


@dataclass(frozen=True)
class Versions:
    """A version among the judged versions of a device and mode; no judged version counts as all of them.

    Attributes:
        version: the version that is asked for.
        judged: the versions that were judged, as written; one without a local label stands for all that have one.
    """

    version: Version
    judged: tuple[str, ...]

    @cached_property
    def confirmed(self) -> bool:
        """Whether the version was judged, or no version is named."""
        return not self.judged or self.same != ""

    @cached_property
    def same(self) -> str:
        """The judged version equal to this one, "" if there is none."""
        return next((each for each in self.judged if self._stands(Version(each))), "")

    def _stands(self, judged: Version) -> bool:
        return judged == (self.version if judged.local else Version(self.version.public))

    @cached_property
    def below(self) -> str:
        """The highest judged version below this one, "" if there is none."""
        return max((each for each in self.judged if Version(each) < self.version), key=Version, default="")

    @cached_property
    def above(self) -> str:
        """The lowest judged version above this one, "" if there is none."""
        return min((each for each in self.judged if Version(each) > self.version), key=Version, default="")

    @cached_property
    def nearest(self) -> str:
        """The judged version whose expectations are taken: this one, else one that differs in its local label alone,
        else the one below, else the one above."""
        near = [each for each in (self.below, self.above) if each]
        alike = [each for each in near if Version(each).public == self.version.public]
        return self.same or (alike or near or [""])[0]

    def bearing(self, versions: str) -> Relevance | None:
        """How an entry with these PEP 440 specifiers applies to the version; None if it does not."""
        meant = SpecifierSet(versions)
        here = meant.contains(self.version, prereleases=True)
        if self.confirmed:
            return Relevance() if here else None
        below, above = (bool(each) and meant.contains(each, prereleases=True) for each in (self.below, self.above))
        if self.below and self.above and below != above:
            return Relevance(self.below if below else self.above, settled=False)
        return Relevance(self.nearest) if here or meant.contains(self.nearest, prereleases=True) else None


@dataclass(frozen=True)
class Place:
    """A series among the judged ones.

    Attributes:
        version, device, mode: the series that is asked for.
        judged: what was judged; where nothing is named, every series counts as judged.
    """

    version: Version
    device: str
    mode: str
    judged: Judged

    @cached_property
    def confirmed(self) -> bool:
        """Whether expectations are strict: the series was judged, or the adapter lists no judged series."""
        return not self.judged or (self._here in self.judged and self._at(self._here).confirmed)

    @property
    def nearest(self) -> str:
        """The judged series whose expectations are taken: its version alone where device and mode are the same."""
        return self._label(self._nearest[0], self._at(self._nearest[0]).nearest) if self.judged else ""

    def bearing(self, versions: str, device: str, mode: str) -> Relevance | None:
        """How an entry for these versions, device and mode applies to the series; None if it does not.

        An entry that names this device and mode is inferred from the nearest judged series that it names; any other
        entry applies if it names the nearest judged series.
        """

        def meant(where: tuple[str, str]) -> bool:
            return named(device, where[0]) and named(mode, where[1])

        here = meant(self._here)
        if not self.judged or self.confirmed:
            return self._at(self._here).bearing(versions) if here else None
        own = [where for where in self._nearest if meant(where)] if here else []
        where = own[0] if own else self._nearest[0]
        if not here and not meant(where):
            return None
        result = self._at(where).bearing(versions)
        if result is None or where == self._here:
            return result
        return Relevance(self._label(where, result.inferred_from or self._at(where).nearest), settled=False)

    @property
    def _here(self) -> tuple[str, str]:
        return self.device, self.mode

    def _at(self, where: tuple[str, str]) -> Versions:
        return Versions(self.version, self.judged.get(where, ()))

    def _label(self, where: tuple[str, str], version: str) -> str:
        return version if where == self._here else str(VersionSeries(version, *where))

    @cached_property
    def _nearest(self) -> list[tuple[str, str]]:
        """Devices and modes, the nearest first."""

        def distance(where: tuple[str, str]) -> tuple[bool, bool, bool]:
            device, mode = where
            return mode != self.mode, device != self.device, not self._at(where).confirmed

        return sorted(self.judged, key=distance)


def ordered(framework: str, versions: Iterable[str]) -> tuple[str, ...]:
    """Versions from the lowest to the highest.

    Raises:
        ValueError: one is none of PEP 440.
    """
    return tuple(sorted(versions, key=lambda version: parsed(framework, version)))


def every_version(judged: Judged) -> tuple[str, ...]:
    """All versions that were judged on some device in some mode, from the lowest to the highest."""
    return ordered(JUDGED, {version for versions in judged.values() for version in versions})


def merged(first: Judged, second: Judged) -> Judged:
    """The union of both."""
    places = dict.fromkeys([*first, *second])
    return {where: ordered(JUDGED, {*first.get(where, ()), *second.get(where, ())}) for where in places}


def read_judged(above: Table) -> Judged:
    """The table `[judged]` of a file, empty without one.

    Raises:
        ValueError: it is not a table of versions by device and mode; the message is one line.
    """
    content = above.values.get(JUDGED, {})
    if not isinstance(content, dict):
        example = f'write a table [{JUDGED}] with lines such as cpu.eager = ["1.0"]'
        raise ValueError(f"{above.where}: {JUDGED} is {content!r}, not versions by device and mode; {example}")
    judged: dict[tuple[str, str], tuple[str, ...]] = {}
    for device, modes in content.items():
        if not isinstance(modes, dict):
            raise ValueError(f"{above.where}: {JUDGED}.{device} names no mode; write {device}.MODE = {modes!r}")
        for mode, versions in modes.items():
            judged[device, mode] = _versions(Table(f"{above.where}, {JUDGED}", {f"{device}.{mode}": versions}))
    if JUDGED in above.values and not judged:
        raise ValueError(f"{above.where}: {JUDGED} is empty; remove it if no series was judged")
    return judged


def _versions(line: Table) -> tuple[str, ...]:
    (name,) = line.values
    versions = line.texts(name)
    if not versions:
        raise ValueError(f"{line.where}: {name} is empty; remove it if no version was judged")
    try:
        return ordered(name, versions)
    except ValueError:
        raise ValueError(f"{line.where}: {name} is {list(versions)!r}, not a list of PEP 440 versions") from None
