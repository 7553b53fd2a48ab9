"""Finds adapters: built-in names, the entry-point group `conformance.frameworks`, and `package.module:Class`."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from frameworks.contract import Framework

GROUP = "conformance.frameworks"

BUILT_IN: dict[str, str] = {
    "reference": "frameworks.reference:ReferenceFramework",
    "torch": "frameworks.torch:TorchFramework",
    "tf": "frameworks.tf:TensorFlowFramework",
    "paddle": "frameworks.paddle:PaddleFramework",
}


class UnknownFramework(Exception):  # noqa: N818 - shown to the user as one line
    """No adapter of that name, or it cannot be imported; the message says what to do."""


def known() -> dict[str, str]:
    """Every adapter's import path by name; an installed entry point may not replace a built-in name."""
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**found, **BUILT_IN}


def path_of(name: str) -> str:
    """The import path, package.module:Class, of the adapter called `name`, which may be such a path itself.

    Raises:
        UnknownFramework: no such name.
    """
    adapters = known()
    path = name if ":" in name else adapters.get(name)
    if path is None:
        raise UnknownFramework(
            f"unknown framework {name!r}: one of {', '.join(sorted(adapters))}, or package.module:Class"
        )
    return path


def load(name: str, device: str = "auto", mode: str | None = None) -> Framework:
    """The adapter called `name`, bound to a device and a mode. Only now is its framework imported.

    Raises:
        UnknownFramework: no such name, or its module cannot be imported.
        MissingDevice: the device is not there.
        ValueError: the adapter has no such mode.
    """
    module, _, attribute = path_of(name).partition(":")
    try:
        made = getattr(import_module(module), attribute)
    except ImportError as error:
        remedy = "check its name" if ":" in name else f"install it, or run `tox -e {name}`"
        raise UnknownFramework(f"framework {name!r} cannot be imported ({error}); {remedy}") from error
    except AttributeError as error:
        raise UnknownFramework(f"framework {name!r}: {error}") from error
    return cast(Framework, made(device, mode))
