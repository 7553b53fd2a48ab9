"""`adapter.toml`: metadata of an adapter that the suite needs before its framework is imported or installed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from frameworks.registry import UnknownFramework, path_of

FILE = "adapter.toml"
"""Name of the file, next to the module of the adapter's entry; optional."""


@dataclass(frozen=True)
class Absence:
    """A feature that the framework does not have, as the public names of some places show.

    Attributes:
        capabilities: values of `Capability`.
        reason: one sentence.
        places: dotted names of modules and classes; one that cannot be imported has no names.
        words: none of them is part of a public name of these places, in any case.
        names: none of them is such a name.
        modes: modes of which this is true; empty for all.
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
        laws: settings of generated tests, for `conformance.search.adapter_settings`.
        distribution: packages to install, for `frameworks.installer.distributions`; None for none.
        absent: features that the framework does not have.
    """

    imports: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    serial: tuple[str, ...] = ()
    laws: Mapping[str, Any] = field(default_factory=dict)
    distribution: Mapping[str, Any] | None = None
    absent: tuple[Absence, ...] = ()

    def absence(self, capability: str, mode: str) -> Absence | None:
        """Why the framework does not have a capability in a mode, None if the file does not say so."""
        fitting = (each for each in self.absent if not each.modes or mode in each.modes)
        return next((each for each in fitting if capability in each.capabilities), None)


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
        return AdapterFile(**lists, **values, absent=absent)
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
    """The folder of the module in package.module:Class, None if there is no such module, or no file of it."""
    try:
        spec = find_spec(path.partition(":")[0])
    except Exception:  # a package above the module does not import
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin and spec.has_location else None
