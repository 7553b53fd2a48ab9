"""Rounds of invention: faults by somebody who knew the contract and the specification alone, not the suites.

    @fault("https://…", clause="scaling.stays-finite", kind="real")
    class ScaleGrowsToInfinity(ReferenceTrainer):
        \"\"\"The scale has no largest value.\"\"\"

A round is a folder with the faults, a `demonstrate.py` that shows that each changes behaviour, and `result.json`: what
the suites caught when they met the faults for the first time. `conformance self inventions` runs a round again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from frameworks.reference import ReferenceFramework
from frameworks.reference.arithmetic import Operations
from frameworks.reference.trainer import ReferenceTrainer

FAULTS: list[type] = []
"""Every fault of the modules that were imported, in their order."""


def fault(link: str, *, clause: str, kind: Literal["real", "invented"]) -> Callable[[type], type]:
    """Makes a framework of a class that overrides part of the reference.

    Args:
        link: the bug that the fault was drawn from, "" for an invented one.
        clause: the clause that its author says it breaks.
        kind: "real" or "invented".
    """

    def decorate(broken: type) -> type:
        overrides: dict[str, Any] = {"__doc__": broken.__doc__, "__module__": broken.__module__}
        if issubclass(broken, ReferenceTrainer):
            made = type(broken.__name__, (ReferenceFramework,), overrides | {"trainer_class": broken})
        elif issubclass(broken, Operations):
            made = type(broken.__name__, (ReferenceFramework,), overrides | {"operations_class": broken})
        else:
            made = broken
        for name, value in (("link", link), ("clause", clause), ("kind", kind)):
            setattr(made, name, value)
        FAULTS.append(made)
        return made

    return decorate
