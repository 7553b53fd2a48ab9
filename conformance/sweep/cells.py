"""Cells of a sweep: one version, companions, mode, ways and device each."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from conformance.runner.adapter_info import check_mode
from conformance.sweep.index import PackageIndex, Release
from conformance.sweep.known_names import check_companions, check_device, check_place, check_ways
from conformance.sweep.plan import OF_ITS_TIME, CellGroup, SweepPlan
from conformance.sweep.versions import chosen, read_rule
from frameworks.adapter_file import adapter_file
from frameworks.installer.distributions import Unavailable
from frameworks.installer.resolution import distribution_of, package_of
from frameworks.registry import UnknownFramework, path_of
from results.record.files import RecordError

_CORRECT = "correct the plan"
PYTHON = platform.python_version()


@dataclass(frozen=True)
class SweepCell:
    """What one run of the suite judges.

    Attributes:
        framework: an adapter's name, or package.module:Class.
        framework_version: "" where the adapter says nothing of what is to be installed.
        package: the package that varies.
        version: of that package.
        released: its day, YYYY-MM-DD, "" where unknown.
        companions: versions of other packages that the plan asks for, by normalized name.
        mode: "" for the adapter's first.
        outcome, reason: why it cannot be judged, as the index says; "" else.
    """

    framework: str
    framework_version: str
    package: str
    version: str
    released: str = ""
    companions: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""
    ways: tuple[str, ...] = ()
    device: str = "cpu"
    outcome: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        """Its name, which a file may have: FRAMEWORK-VERSION[+PACKAGE.VERSION]-DEVICE-MODE[+WAYS]."""
        packages = ".".join(f"{name}.{version}" for name, version in self.packages.items() if name)
        version = f"{self.framework_version or 'here'}{f'+{packages}' if packages else ''}"
        mode = "+".join((self.mode or "default", *self.ways))
        return f"{self.framework.replace(':', '.')}-{version}-{self.device}-{mode}"

    @property
    def packages(self) -> dict[str, str]:
        """Versions of packages next to the framework, by normalized name."""
        own = {} if self.package == package_of(self.framework) else {self.package: self.version}
        return {**own, **self.companions}

    @property
    def key(self) -> str:
        """Digest of what it judges."""
        parts = (self.framework, self.framework_version, self.package, self.version, *sorted(self.companions.items()))
        return hashlib.sha256(repr((*parts, self.mode, self.ways, self.device, PYTHON)).encode()).hexdigest()[:16]

    def document(self) -> dict[str, Any]:
        """Its part of `outcomes.json`."""
        values = asdict(self)
        del values["outcome"], values["reason"]
        return {**values, "python": PYTHON}


def cells_of(plan: SweepPlan, index: PackageIndex) -> tuple[SweepCell, ...]:
    """The cells of a plan, in its order, each once.

    Raises:
        RecordError: an adapter is unknown or has no such mode, versions cannot be listed, or none fits.
    """
    result: dict[str, SweepCell] = {}
    for place, group in enumerate(plan.groups):
        try:
            for cell in _of_group(group, index):
                result.setdefault(cell.key, cell)
        except (ValueError, UnknownFramework, Unavailable) as error:
            remedy = "correct the plan, or pip's settings of indexes" if isinstance(error, Unavailable) else _CORRECT
            known = "" if isinstance(error, UnknownFramework) else f"{group.framework}: "
            where = f"{plan.file}: cells[{place}]" if plan.file else f"cells[{place}] of the plan"
            raise RecordError(where, f"{known}{error}", remedy) from None
    return tuple(result.values())


def extremes(cells: Sequence[SweepCell]) -> tuple[SweepCell, ...]:
    """The oldest and the newest version of each series of cells, without those that cannot be judged."""
    series: dict[tuple[object, ...], list[SweepCell]] = {}
    for cell in cells:
        if not cell.outcome:
            place = cell.framework, cell.package, *sorted(cell.companions.items()), cell.mode, cell.ways, cell.device
            series.setdefault(place, []).append(cell)
    ends = {end.key for each in series.values() for end in (each[0], each[-1])}
    return tuple(cell for cell in cells if cell.key in ends)


def _of_group(group: CellGroup, index: PackageIndex) -> Iterator[SweepCell]:
    path_of(group.framework)
    distribution = distribution_of(group.framework)
    modes = group.modes or adapter_file(group.framework).modes or ("",)
    _check_names(group, modes)
    combined = [*product(group.companions, modes, group.ways, group.devices)]
    if distribution is None:
        if group.package or any(read_rule(rule).exact != "1" for rule in group.versions):
            raise ValueError('nothing is installed for it; write versions = ["1"] and no package')
        for companions, mode, ways, device in combined:
            yield SweepCell(group.framework, "", "", "1", companions=companions, mode=mode, ways=ways, device=device)
        return
    own = package_of(group.framework)
    package = group.package or str(canonicalize_name(own))
    releases = index.releases(package)
    for version in chosen(map(read_rule, group.versions), releases):
        release = index.release(package, version)
        framework_version = version
        if group.package:
            framework_version = group.framework_version or distribution.pinned
        cell = SweepCell(group.framework, framework_version, package, version, "" if release is None else release.date)
        if group.framework_version == OF_ITS_TIME:
            cell = replace(cell, framework_version=newest_at(index.releases(own), cell.released))
        outcome, reason = _refusal(package, version, release)
        if not outcome and group.package:
            other = cell.framework_version
            outcome, reason = _refusal(own, other, index.release(own, other)) if other else ("no solution", _TOO_OLD)
        for companions, mode, ways, device in combined:
            yield replace(
                cell, companions=companions, mode=mode, ways=ways, device=device, outcome=outcome, reason=reason
            )


def _check_names(group: CellGroup, modes: Sequence[str]) -> None:
    """Refuses what cannot be judged whatever is installed."""
    varying = group.package or str(canonicalize_name(package_of(group.framework)))
    check_place(group.framework)
    for mode in modes:
        check_mode(group.framework, mode)
    for device in group.devices:
        check_device(group.framework, device)
    for ways in group.ways:
        check_ways(group.framework, modes, ways)
    for companions in group.companions:
        check_companions(group.framework, varying, [*companions])


_TOO_OLD = "the framework has no wheel of that time for this Python"


def newest_at(releases: Mapping[Version, Release], day: str) -> str:
    """The newest release up to a day, no prerelease, not yanked, with a wheel for this Python; "" if there is none."""
    fitting = [
        version
        for version, release in releases.items()
        if not version.is_prerelease and not release.yanked and release.wheels and release.date and release.date <= day
    ]
    return str(max(fitting)) if fitting else ""


def _refusal(package: str, version: str, release: Release | None) -> tuple[str, str]:
    """The outcome and reason of a release that cannot be judged here, as the index says."""
    here = ".".join(map(str, sys.version_info[:2]))
    if release is None:
        return "no solution", f"no index has {package} {version}"
    if release.yanked:
        return "yanked", f"{package} {version} was withdrawn"
    if not release.wheels:
        declared = {each.python for each in release.files if each.python}
        built = f"has wheels for {release.pythons}" if release.pythons else "has no wheel"
        wants = f"wants Python {min(declared)}" if declared else built
        if not any(each.tags and not each.python for each in release.files) and declared:
            return "no wheel", f"{package} {version} {wants}, and this is {here}"
        return "no wheel", f"{package} {version} {built}, and this is Python {here} on {platform.machine()}"
    return "", ""
