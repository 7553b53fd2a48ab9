"""Every technique: the objects in the modules next to this one, and in the modules `technique` of the packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from conformance.techniques.technique import Technique

_FOLDER = Path(__file__).parent


def _techniques() -> Iterator[Technique]:
    for path in sorted([*_FOLDER.glob("[!_]*.py"), *_FOLDER.glob("*/technique.py")]):
        module = import_module(".".join((__package__, *path.relative_to(_FOLDER).with_suffix("").parts)))
        yield from (value for value in vars(module).values() if isinstance(value, Technique))


TECHNIQUES = tuple(_techniques())
