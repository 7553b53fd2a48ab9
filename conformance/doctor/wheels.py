"""Which build of a framework is installed, read from the metadata of its package."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import Distribution as Metadata
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from frameworks.installer.distributions import Distribution, Unavailable, bare
from frameworks.installer.locks import installed_version

_LABEL = re.compile(r"cu(\d+)(\d)$")
_EXACT = re.compile(r"(?:cuda-toolkit|nvidia-cuda-runtime(?:-cu\d+)?)")
_MAJOR = re.compile(r"(?:nvidia-.*-cu|jax-cuda)(\d+)(?:-plugin)?")


@dataclass(frozen=True)
class Build:
    """An installed package of a framework.

    Attributes:
        package, version: as installed, the version with its local label.
        cuda: the CUDA version that it was built for, such as "13.0", or "12" where the metadata says no more; "" for a
            build for the CPU.
    """

    package: str
    version: str
    cuda: str


def installed_build(chosen: Distribution) -> Build | None:
    """The installed build, that for GPUs if both packages are there; None if there is none."""
    for package in dict.fromkeys((bare(chosen.gpu), bare(chosen.cpu))):
        if version := installed_version(package):
            return Build(package, version, cuda_required(distribution(package), version, installed_version))
    return None


def cuda_required(metadata: Metadata, version: str, installed: Callable[[str], object] = lambda _: None) -> str:
    """The CUDA version of a package: of its local label, or of the packages that it requires; "" for none.

    Args:
        installed: the version of a package that is installed; a requirement of an extra counts only then.
    """
    label = Version(version).local or ""
    if label == "cpu":
        return ""
    if named := _LABEL.fullmatch(label):
        return f"{named[1]}.{named[2]}"
    read = [Requirement(line) for line in metadata.requires or ()]
    needed = [each for each in read if _counts(each, installed)]
    exact = [
        pin.version
        for each in needed
        if _EXACT.fullmatch(canonicalize_name(each.name))
        for pin in each.specifier
        if pin.operator == "=="
    ]
    if exact:
        first = Version(exact[0])
        return f"{first.major}.{first.minor}"
    majors = [named[1] for each in needed if (named := _MAJOR.fullmatch(canonicalize_name(each.name)))]
    return majors[0] if majors else ""


def _counts(requirement: Requirement, installed: Callable[[str], object]) -> bool:
    if requirement.marker is not None and "extra" in str(requirement.marker):
        return installed(requirement.name) is not None
    return requirement.marker is None or requirement.marker.evaluate()


def mismatch(chosen: Distribution, build: Build, driver: str) -> tuple[str, str]:
    """What is wrong with a build where the driver runs a CUDA version, and what to do; two empty texts if nothing.

    A driver runs what was built for any version with the same or an older first part.
    """
    if not build.cuda:
        what = f"{build.package} {build.version} is a build for the CPU"
    elif Version(build.cuda).major > Version(driver).major:
        what = f"{build.package} {build.version} is for CUDA {build.cuda}, and the driver runs {driver}"
    else:
        return "", ""
    version = Version(build.version).public
    try:
        index = chosen.index_of(version, driver)
    except Unavailable as refusal:
        return what, f"update the driver ({refusal})"
    place = f" --index-url {index}" if index else ""
    return what, f"pip uninstall {build.package}, then `pip install '{chosen.gpu}=={version}'{place}`"
