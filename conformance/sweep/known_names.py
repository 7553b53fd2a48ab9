"""Devices and ways that no adapter can have, as far as that is known before a framework is installed."""

import re
from collections.abc import Sequence
from itertools import product

from packaging.utils import canonicalize_name

from frameworks.adapter_file import folder_of
from frameworks.installer.distributions import bare, distribution_of
from frameworks.registry import built_in, path_of
from frameworks.ways import declared

ACCELERATORS = (
    *("cuda", "gpu", "hpu", "ipu", "metal", "mlu", "mps", "mtia", "neuron", "npu", "rocm", "tpu", "xla", "xpu"),
    *("gcu", "iluvatar_gpu", "intel_gpu", "intel_hpu", "metax_gpu", "openreg", "privateuseone", "sdaa", "vulkan"),
)
"""Names that frameworks and their plug-ins have for accelerators."""

_SET = re.compile(r"set-[1-9][0-9]*")


def check_place(framework: str) -> None:
    """Refuses an import path whose module is not there.

    Raises:
        ValueError: it is not there. UnknownFramework: no adapter has the name.
    """
    path = path_of(framework)
    if framework not in built_in() and folder_of(path) is None:
        raise ValueError(f"no module {path.partition(':')[0]} can be imported from here; want package.module:Class")


def check_device(framework: str, device: str) -> None:
    """Refuses a device that a built-in adapter cannot have.

    Raises:
        ValueError: no framework has a device of that name.
    """
    if framework not in built_in() or device in ("auto", "cpu"):
        return
    if distribution_of(framework) is None:
        raise ValueError(f"got device {device!r}, want cpu or auto: {framework} has no other")
    if device.lower() not in ACCELERATORS and not _written(framework, device):
        raise ValueError(f"got device {device!r}, want cpu, auto or an accelerator: {', '.join(ACCELERATORS[:14])}")


def check_ways(framework: str, modes: Sequence[str], ways: Sequence[str]) -> None:
    """Refuses ways that an adapter does not declare, or not in one of these modes, and two of one technique.

    Raises:
        ValueError: they cannot be chosen. UnknownFramework: there is no such adapter.
    """
    known = {str(way): way for way in declared(framework)}
    for name in ways:
        if name not in known and not (known and _SET.fullmatch(name)):
            raise ValueError(f"got way {name!r}, want one that `conformance ways {framework}` lists")
    named = [known[name] for name in ways if name in known]
    for mode, way in product(filter(None, modes), named):
        if mode not in way.modes:
            raise ValueError(f"got way {str(way)!r} in mode {mode!r}, want it in {' or '.join(way.modes)}")
    if len({way.technique for way in named}) < len(named):
        raise ValueError(f"got ways {', '.join(ways)} together, want at most one of each technique")


def check_companions(framework: str, package: str, companions: Sequence[str]) -> None:
    """Refuses companions that have a version already: the framework, and the package that varies.

    Args:
        package: that varies, by its normalized name.
        companions: their normalized names.

    Raises:
        ValueError: one of them is the framework or that package.
    """
    chosen = distribution_of(framework)
    own = {str(canonicalize_name(bare(each))) for each in (chosen.cpu, chosen.gpu)} if chosen else set()
    for name in companions:
        if name == package or (name in own and package in own):
            raise ValueError(f"got {name} as a companion, and it is the package that varies; want another package")
        if name in own:
            raise ValueError(f"got {name} as a companion, want its version as the framework's")


def _written(framework: str, word: str) -> bool:
    """Whether a module of an adapter has this word as a string."""
    folder = folder_of(path_of(framework))
    quoted = f'"{word}"'
    return folder is None or any(quoted in path.read_text("utf-8", "replace") for path in folder.rglob("*.py"))
