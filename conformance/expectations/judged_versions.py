"""Versions in which somebody has judged an adapter, and what is to be expected in those that nobody has judged yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


def parsed(framework: str, version: str) -> Version:
    """A version that can be compared.

    Raises:
        ValueError: it is none of PEP 440.
    """
    try:
        return Version(version)
    except InvalidVersion:
        raise ValueError(f"{framework} calls its version {version!r}, which PEP 440 cannot compare") from None


@dataclass(frozen=True)
class Bearing:
    """What an entry says of a version.

    Attributes:
        inferred_from: the judged version that it is taken from, "" where the version itself was judged.
        settled: whether the entry must come true; False between two judged versions that disagree on it.
    """

    inferred_from: str = ""
    settled: bool = True


@dataclass(frozen=True)
class Place:
    """A version among those that were judged; none of them is the same as every one of them.

    Attributes:
        version: the version that is asked for.
        judged: the versions that were judged, as written; one without a local label stands for all that have one.
    """

    version: Version
    judged: tuple[str, ...]

    @cached_property
    def confirmed(self) -> bool:
        """Whether expectations are strict: the version was judged, or the adapter does not say which ones were."""
        return not self.judged or any(self._stands(Version(each)) for each in self.judged)

    def _stands(self, judged: Version) -> bool:
        return judged == (self.version if judged.local else Version(self.version.public))

    @cached_property
    def below(self) -> str:
        """The highest judged version below, "" if there is none."""
        return max((each for each in self.judged if Version(each) < self.version), key=Version, default="")

    @cached_property
    def above(self) -> str:
        """The lowest judged version above, "" if there is none."""
        return min((each for each in self.judged if Version(each) > self.version), key=Version, default="")

    @cached_property
    def nearest(self) -> str:
        """The judged version whose expectations are taken: one that differs in its local label alone, else the one
        below, else the one above."""
        near = [each for each in (self.below, self.above) if each]
        alike = [each for each in near if Version(each).public == self.version.public]
        return (alike or near or [""])[0]

    def bearing(self, versions: str) -> Bearing | None:
        """What an entry of these PEP 440 specifiers says of the version; None if it says nothing."""
        meant = SpecifierSet(versions)
        here = meant.contains(self.version, prereleases=True)
        if self.confirmed:
            return Bearing() if here else None
        below, above = (bool(each) and meant.contains(each, prereleases=True) for each in (self.below, self.above))
        if self.below and self.above and below != above:
            return Bearing(self.below if below else self.above, settled=False)
        return Bearing(self.nearest) if here or meant.contains(self.nearest, prereleases=True) else None


def ordered(framework: str, versions: Iterable[str]) -> tuple[str, ...]:
    """Versions from the lowest to the highest.

    Raises:
        ValueError: one is none of PEP 440.
    """
    return tuple(sorted(versions, key=lambda version: parsed(framework, version)))
