"""What to install for each framework: pinned versions, companions, limits that no package declares, wheels for GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version


class Unavailable(Exception):  # noqa: N818 - said in one line, not raised on
    """What was asked for is not to be had; the message says so in one line, with what to do."""


@dataclass(frozen=True)
class Limit:
    """A requirement that versions of a framework have and do not declare.

    Attributes:
        versions: of the framework (PEP 440).
        requirement: what must be added.
        reason: what happens without it.
    """

    versions: str
    requirement: str
    reason: str


@dataclass(frozen=True)
class Wheels:
    """Where the wheels for GPUs of some versions of a framework are.

    Attributes:
        versions: of the framework (PEP 440).
        main: CUDA version of the wheel on the main index, "" if there is none.
        others: CUDA versions of the wheels on the framework's own index.
    """

    versions: str
    main: str = ""
    others: tuple[str, ...] = ()

    def cuda(self, driver: str) -> str:
        """CUDA version of the wheel to take from the framework's own index, "" for the wheel on the main index.

        Args:
            driver: newest CUDA version that the driver runs, such as "12.8"; "" if it does not say. It runs what was
                built for any version with the same or an older first part.

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
    """What to install for a framework.

    Attributes:
        pinned: the version of the committed baselines.
        cpu, gpu: package names, extras included.
        companions: packages that the adapter needs next to the framework; their versions are in the lock.
        limits: requirements that no package declares.
        wheels: where wheels for GPUs are; the first whose versions fit counts.
        index: address of the framework's own index; {cuda} stands for the digits of a CUDA version, such as 126.
    """

    pinned: str
    cpu: str
    gpu: str
    companions: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    wheels: tuple[Wheels, ...] = ()
    index: str = ""

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


_NUMPY_1 = "built for NumPy 1, it cannot take NumPy 2's arrays"

DISTRIBUTIONS: dict[str, Distribution] = {
    "torch": Distribution(
        "2.13.0",
        "torch",
        "torch",
        limits=(Limit("<2.3", "numpy<2", _NUMPY_1),),
        wheels=(Wheels(">=2.11", "13.0", ("12.6",)), Wheels(">=2.1,<2.8", "12.1", ("11.8",)), Wheels(">=2.8", "12.8")),
        index="https://download.pytorch.org/whl/cu{cuda}",
    ),
    "tf": Distribution(
        "2.21.0", "tensorflow-cpu", "tensorflow[and-cuda]", companions=("keras",), wheels=(Wheels(">=2.15", "12.2"),)
    ),
    "paddle": Distribution(
        "3.3.1",
        "paddlepaddle",
        "paddlepaddle-gpu",
        companions=("setuptools",),
        limits=(
            Limit("<3.0.0a0", "numpy<2", _NUMPY_1),
            Limit(">=3.0.0a0", "numpy<2.4", "it takes arrays of one element for numbers, which NumPy 2.4 refuses"),
        ),
        wheels=(
            Wheels(">=3.3", others=("11.8", "12.6", "12.9", "13.0")),
            Wheels(">=3.2", others=("11.8", "12.6", "12.9")),
            Wheels(">=3.0", others=("11.8", "12.6")),
        ),
        index="https://www.paddlepaddle.org.cn/packages/stable/cu{cuda}/",
    ),
    "jax": Distribution(
        "0.10.2",
        "jax",
        "jax[cuda12]",
        companions=("flax", "optax", "jmp", "orbax-checkpoint"),
        limits=(Limit("<0.4.26", "numpy<2", _NUMPY_1),),
        wheels=(Wheels(">=0.4.26", "12.1"),),
    ),
}

ALIASES = {"ORBAX_VERSION": "orbax-checkpoint"}
"""Variables that name a package otherwise than by its whole name."""


def bare(package: str) -> str:
    """A package's name without its extras."""
    return package.partition("[")[0]


def variable_of(package: str) -> str:
    """The environment variable that overrides a package's version: ORBAX_CHECKPOINT_VERSION."""
    return canonicalize_name(package).replace("-", "_").upper() + "_VERSION"
