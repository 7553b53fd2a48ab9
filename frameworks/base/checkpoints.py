"""Validation of checkpoint containers, for all adapters."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar


def same_parts(file: Path, saved: Collection[str], own: Collection[str]) -> None:
    """Refuses a checkpoint whose parts (model, optimizer, scaler, ...) differ from those of the run that loads it.

    The container that holds the parts is the user's, so no framework compares them; each part is then loaded by the
    framework's own call, without a further check.

    Raises:
        ValueError: a part is on one side only.
    """
    if missing := sorted(set(own) - set(saved)):
        raise ValueError(f"{file} lacks {', '.join(missing)}, which this run has")
    if strange := sorted(set(saved) - set(own)):
        raise ValueError(f"{file} holds {', '.join(strange)}, for which this run has no place")


Run = TypeVar("Run")


def of_same_class(run: Run, other: object) -> Run:
    """Another run whose state this one can take.

    Raises:
        TypeError: it is of another class.
    """
    if not isinstance(other, type(run)):
        raise TypeError(f"the run whose state is taken: got {type(other).__name__}, want {type(run).__name__}")
    return other
