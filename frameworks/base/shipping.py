"""Attempts that look for a name or a parameter which a later version may have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any


def ships(module: str, word: str) -> bool:
    """Whether a public name of the module contains the word, in any case."""
    return any(word.lower() in name.lower() for name in dir(import_module(module)) if not name.startswith("_"))


def takes(function: Callable[..., Any], *names: str) -> bool:
    """Whether the callable has a parameter of one of these names."""
    return any(name in inspect.signature(function).parameters for name in names)
