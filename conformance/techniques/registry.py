"""Every technique: the objects in the modules `technique` of the packages next to this module."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from conformance.techniques.technique import Technique


def _techniques() -> Iterator[Technique]:
    for module in sorted(Path(__file__).parent.glob("*/technique.py")):
        names = vars(import_module(f"conformance.techniques.{module.parent.name}.technique"))
        yield from (value for value in names.values() if isinstance(value, Technique))


TECHNIQUES = tuple(_techniques())
