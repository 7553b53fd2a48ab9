"""Faults: subclasses of the reference that do one thing wrong each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frameworks.reference.arithmetic import Operations
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.trainer import ReferenceTrainer


def fault(link: str, *, clause: str, kind: str) -> Callable[[type], type[ReferenceFramework]]:
    """Makes a framework class of a trainer or of operations with a fault, and notes where the fault comes from."""

    def made(cls: type) -> type[ReferenceFramework]:
        described: dict[str, Any] = {"__doc__": cls.__doc__, "__module__": cls.__module__}
        if issubclass(cls, ReferenceTrainer):
            result = type(cls.__name__, (ReferenceFramework,), described | {"trainer_class": cls})
        elif issubclass(cls, Operations):
            result = type(cls.__name__, (ReferenceFramework,), described | {"operations_class": cls})
        else:
            result = cls
        result.link, result.clause, result.kind = link, clause, kind  # type: ignore[attr-defined]
        return result

    return made
