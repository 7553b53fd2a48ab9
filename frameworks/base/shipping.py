"""Attempts that look for a name or a parameter which a later version may have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from frameworks.adapter_file import Absence
from frameworks.ways import resolved


def ships(owner: str, word: str) -> bool:
    """Whether a public name of a module or class contains the word, in any case."""
    return any(word.lower() in name.lower() for name in dir(resolved(owner)) if not name.startswith("_"))


def appeared(absence: Absence) -> bool:
    """Whether a place has one of the names after all, or a public one with one of the words."""
    places = {place: resolved(place) for place in absence.places}
    named = any(hasattr(place_object, name) for place_object in places.values() for name in absence.names)
    return named or any(ships(place, word) for place in places for word in absence.words)


def takes(function: Callable[..., Any], *names: str) -> bool:
    """Whether the callable has a parameter of one of these names."""
    return any(name in inspect.signature(function).parameters for name in names)
