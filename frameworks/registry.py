"""Finds adapters, by entry point (`conformance.frameworks`) or `package.module:Class`, and their `adapter.toml`.

Entry points of built-in adapters are read from the suite's pyproject.toml, since a checkout is not an installed
package. Those of installed packages come from `importlib.metadata`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from frameworks.contract import Framework


GROUP = "conformance.frameworks"
DEVICE_HELP = "cpu, the framework's name of another device (cuda, xpu, mps, tpu, ...), or auto: an accelerator if any."
"""Help text of the option `--device`."""

_LOOPS = "frameworks.torch.own_loop"
_METHODS = ("setup", "micro_batch", "step")
"""The methods of a user's training loop; a class that has them is wrapped in an adapter."""

_PROJECT = Path(__file__).parent.parent / "pyproject.toml"


class UnknownFramework(Exception):
    """There is no adapter of that name, or it cannot be imported. The message says what to do."""


@cache
def _own_points() -> tuple[EntryPoint, ...]:
    table = tomllib.loads(_PROJECT.read_text("utf-8"))["project"]["entry-points"][GROUP]
    return tuple(EntryPoint(name, path, GROUP) for name, path in table.items())


@cache
def _installed_points() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.value))


def built_in() -> dict[str, str]:
    """The import path of each built-in adapter, by name."""
    return {point.name: point.value for point in _own_points()}


def find_adapters() -> dict[str, str]:
    """Every adapter's import path by name; the built-in one precedes others of its name, then the first path does."""
    return {name: paths[0] for name, paths in _claims().items()}


def clashes(name: str | None = None) -> list[str]:
    """One line for each adapter that is ignored because another has its name; for `name`, or for all names."""
    return [
        f"{claimed}: adapter {path} is ignored, because {paths[0]} has the same name; rename one of them"
        for claimed, paths in sorted(_claims().items())
        for path in paths[1:]
        if name in (None, claimed)
    ]


def _claims() -> dict[str, list[str]]:
    claims: dict[str, list[str]] = {}
    for point in (*_own_points(), *_installed_points()):
        paths = claims.setdefault(point.name, [])
        if point.value not in paths:
            paths.append(point.value)
    return claims


def path_of(name: str) -> str:
    """The import path, package.module:Class, of the adapter `name`, which may also be such a path.

    Raises:
        UnknownFramework: the name is unknown.
    """
    adapters = find_adapters()
    path = name if ":" in name else adapters.get(name)
    if path is None:
        raise UnknownFramework(
            f"unknown framework {name!r}: one of {', '.join(sorted(adapters))}, or package.module:Class"
        )
    return path


def load(name: str, device: str = "auto", mode: str | None = None) -> Framework:
    """The adapter `name`, bound to a device and a mode; imports its framework.

    Raises:
        UnknownFramework: the name is unknown, the module cannot be imported, or it needs another version of the
            contract.
        MissingDevice: the device is not available.
        ValueError: the adapter does not have the mode.
    """
    module, _, attribute = path_of(name).partition(":")
    try:
        adapter = getattr(import_module(module), attribute)
    except Exception as error:
        remedy = (
            "`conformance install {name}` installs it" if name in built_in() else "check its name and what it imports"
        )
        raise UnknownFramework(
            f"framework {name!r} cannot be imported ({type(error).__name__}: {error}); {remedy.format(name=name)}"
        ) from error
    if isinstance(adapter, type) and all(callable(getattr(adapter, method, None)) for method in _METHODS):
        adapter = import_module(_LOOPS).framework_of(adapter)
    _check_contract(name, adapter)
    from frameworks.contract import Framework, MissingDevice

    try:
        framework = adapter(device, mode)
    except (MissingDevice, UnknownFramework, ValueError):
        raise
    except Exception as error:
        raise UnknownFramework(
            f"cannot initialise adapter {name!r}: {type(error).__name__}: {error}; want a class of device and mode"
        ) from error
    if lacking := [member for member in dir(Framework) if member[0] != "_" and not hasattr(framework, member)]:
        raise UnknownFramework(
            f"framework {name!r} is not an adapter: it lacks {', '.join(lacking[:3])}"
            f"{f' and {len(lacking) - 3} more' if lacking[3:] else ''}; see docs/adapters.md"
        )
    return cast("Framework", framework)


def _check_contract(name: str, adapter: object) -> None:
    """Refuses an adapter whose attribute `contract` differs from `CONTRACT_VERSION`; see docs/design.md."""
    from frameworks.contract import CONTRACT_VERSION

    written_for = getattr(adapter, "contract", CONTRACT_VERSION)
    if type(written_for) is not int or written_for != CONTRACT_VERSION:
        raise UnknownFramework(
            f"contract version of adapter {name!r}: got {str(written_for)[:40]}, want {CONTRACT_VERSION};"
            " update the adapter, or use a release of the suite that has its version"
        )


FILE = "adapter.toml"
"""Name of the optional file next to the module of the adapter's entry point."""


@dataclass(frozen=True)
class Absence:
    """A feature that the framework does not have, proved by the public names of some modules and classes.

    Attributes:
        capabilities: values of `Capability`.
        reason: one sentence.
        places: dotted names of modules and classes; a place that cannot be imported has no names.
        words: words that no public name in these places contains, in upper or lower case.
        names: names that these places do not have.
        modes: modes without the feature; empty for all.
    """

    capabilities: tuple[str, ...]
    reason: str
    places: tuple[str, ...]
    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdapterFile:
    """The content of an adapter's file.

    Attributes:
        imports: top-level modules of the framework, which only this adapter imports; the framework's own first.
        modes: default modes of `conformance run`; empty for the framework's first one.
        serial: modes whose tests each worker runs in the same order in every run, because the framework keeps state
            between them.
        lacks: families of clauses that a mode has no place for, by mode; their tests are not collected.
        laws: settings of generated tests, for `conformance.search`.
        distribution: packages to install, for `frameworks.installer.distributions`; None for none.
        absent: features that the framework does not have.
    """

    imports: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    serial: tuple[str, ...] = ()
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    laws: Mapping[str, Any] = field(default_factory=dict)
    distribution: Mapping[str, Any] | None = None
    absent: tuple[Absence, ...] = ()

    def absence(self, capability: str, mode: str) -> Absence | None:
        """The declared absence of a capability in a mode; None if the file declares none."""
        fitting = (absence for absence in self.absent if not absence.modes or mode in absence.modes)
        return next((absence for absence in fitting if capability in absence.capabilities), None)


@cache
def adapter_file(name: str) -> AdapterFile:
    """The file of the adapter `name` (a name or an import path), without importing its framework.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    folder = folder_of(path_of(name))
    path = None if folder is None else folder / FILE
    if path is None or not path.is_file():
        return AdapterFile()
    try:
        values = tomllib.loads(path.read_text("utf-8"))
        lists: dict[str, Any] = {key: _names(key, values.pop(key, [])) for key in ("imports", "modes", "serial")}
        absent = tuple(_absence(table) for table in values.pop("absent", []))
        lacks = {mode: _names(f"lacks: {mode}", families) for mode, families in values.pop("lacks", {}).items()}
        return AdapterFile(**lists, lacks=lacks, **values, absent=absent)
    except (ValueError, TypeError) as error:
        raise UnknownFramework(f"{path}: {error}; see docs/adapters.md") from None


def _absence(table: dict[str, Any]) -> Absence:
    reason = table.pop("reason", None)
    if not isinstance(reason, str) or not reason:
        raise ValueError("absent: reason: want one sentence")
    absence = Absence(reason=reason, **{key: _names(f"absent: {key}", value) for key, value in table.items()})
    if not absence.words and not absence.names:
        raise ValueError("absent: want words or names that would show the feature")
    return absence


def _names(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"{key}: want a list of names")
    return tuple(value)


def folder_of(path: str) -> Path | None:
    """The folder of the module in package.module:Class; None if the module or its file does not exist."""
    try:
        spec = find_spec(path.partition(":")[0])
    except Exception:  # the import of a parent package may raise anything
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin and spec.has_location else None
