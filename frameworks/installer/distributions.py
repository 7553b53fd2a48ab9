"""Packages of each framework: pinned versions, companions, undeclared requirements, and wheels for GPUs.

The table `distribution` of each adapter's `adapter.toml` has the attributes of `Distribution`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from frameworks.registry import FILE, UnknownFramework, adapter_file, built_in


class Unavailable(Exception):
    """A requested package or version cannot be installed; the one-line message says what to do."""


@dataclass(frozen=True)
class Limit:
    """A requirement that some versions of a framework have but do not declare.

    Attributes:
        versions: versions of the framework (PEP 440).
        requirement: the requirement to add.
        reason: the failure without it.
    """

    versions: str
    requirement: str
    reason: str


@dataclass(frozen=True)
class Wheels:
    """The indexes of the GPU wheels of some versions of a framework.

    Attributes:
        versions: versions of the framework (PEP 440).
        main: CUDA version of the wheel on the main index, "" if there is none.
        others: CUDA versions of the wheels on the framework's own index.
    """

    versions: str
    main: str = ""
    others: tuple[str, ...] = ()

    def cuda(self, driver: str) -> str:
        """CUDA version of the wheel to take from the framework's own index, "" for the wheel on the main index.

        Args:
            driver: newest CUDA version that the driver runs, such as "12.8"; "" if unknown. It runs builds for the same
                or an older major version.

        Raises:
            Unavailable: every wheel needs a newer driver.
        """
        if self.main and (not driver or Version(driver).major >= Version(self.main).major):
            return ""
        fitting = [cuda for cuda in self.others if not driver or Version(cuda).major <= Version(driver).major]
        if not fitting:
            oldest = min(filter(None, (self.main, *self.others)), key=Version)
            raise Unavailable(f"the driver runs CUDA {driver}, and the oldest wheel wants {oldest}")
        not_newer = [cuda for cuda in fitting if driver and Version(cuda) <= Version(driver)]
        return max(not_newer, key=Version) if not_newer else min(fitting, key=Version)


@dataclass(frozen=True)
class Distribution:
    """The packages of a framework.

    Attributes:
        pinned: version of the committed baselines.
        cpu, gpu: package names of the builds for the CPU and for GPUs, extras included.
        companions: packages that the adapter needs next to the framework; their versions are in the lock.
        limits: requirements that no package declares.
        wheels: indexes of GPU wheels; the first entry whose versions match is used.
        index: address of the framework's own index; {cuda} stands for the digits of a CUDA version, such as 126.
        aliases: environment variables with another name for a companion's version.
        modes: additional packages of each mode.
    """

    pinned: str
    cpu: str
    gpu: str
    companions: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    wheels: tuple[Wheels, ...] = ()
    index: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def packages(self) -> tuple[str, str]:
        """The package names of the CPU build and the GPU build, without extras."""
        return bare(self.cpu), bare(self.gpu)

    def companions_in(self, modes: Collection[str]) -> tuple[str, ...]:
        """The companions and the packages of these modes, each once."""
        of_modes = (companion for mode in modes for companion in self.modes.get(mode, ()))
        return tuple(dict.fromkeys([*self.companions, *of_modes]))

    def limits_of(self, wanted: str) -> list[str]:
        """The undeclared requirements of a version."""
        return [
            limit.requirement
            for limit in self.limits
            if SpecifierSet(limit.versions).contains(wanted, prereleases=True)
        ]

    def index_of(self, wanted: str, driver: str) -> str:
        """Address of the index that has a version's wheel for a driver's CUDA version, "" for the main index.

        Raises:
            Unavailable: every wheel needs a newer driver.
        """
        for wheels in self.wheels:
            if SpecifierSet(wheels.versions).contains(wanted, prereleases=True):
                cuda = wheels.cuda(driver)
                return self.index.format(cuda=cuda.replace(".", "")) if cuda else ""
        return ""


def read_distribution(name: str) -> Distribution | None:
    """The table `distribution` of an adapter's `adapter.toml`; None without one.

    Raises:
        UnknownFramework: the table does not have the attributes of a `Distribution`.
    """
    table = adapter_file(name).distribution
    if table is None:
        return None
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    try:
        limits = tuple(Limit(**limit) for limit in table.get("limits", ()))
        wheels = tuple(Wheels(**{**row, "others": tuple(row.get("others", ()))}) for row in table.get("wheels", ()))
        modes = {mode: tuple(packages) for mode, packages in table.get("modes", {}).items()}
        return Distribution(**{**values, "limits": limits, "wheels": wheels, "modes": modes})
    except TypeError as error:
        raise UnknownFramework(f"{name}/{FILE}: {error}; docs/adapters.md says what the file has") from None


DISTRIBUTIONS: dict[str, Distribution] = {
    name: distribution for name in built_in() if (distribution := read_distribution(name)) is not None
}
"""The distribution of each built-in framework."""

ALIASES = {
    variable: package for distribution in DISTRIBUTIONS.values() for variable, package in distribution.aliases.items()
}
"""Environment variables with another name for a package's version."""


def distribution_of(framework: str) -> Distribution | None:
    """The distribution of an adapter (a name or an import path); None without one.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    return DISTRIBUTIONS.get(framework) or read_distribution(framework)


def package_of(framework: str) -> str:
    """The name of a framework's package for CPUs, without extras; "" if its adapter has no distribution."""
    chosen = distribution_of(framework)
    return "" if chosen is None else bare(chosen.cpu)


def bare(package: str) -> str:
    """A package's name without its extras."""
    return package.partition("[")[0]


def variable_of(package: str) -> str:
    """The environment variable that overrides a package's version: ORBAX_CHECKPOINT_VERSION."""
    return canonicalize_name(package).replace("-", "_").upper() + "_VERSION"
