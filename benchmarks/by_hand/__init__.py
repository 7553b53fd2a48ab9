"""The same steps written by hand in each framework: what an adapter's step is held against.

Nothing here imports more of the suite than the fixtures.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import cast

from benchmarks.by_hand.cases import CASES, FIXTURES, ByHand, Case

__all__ = ["CASES", "FIXTURES", "ByHand", "Case", "steps"]


def steps(framework: str, mode: str) -> ByHand:
    """The steps written by hand in a framework, by its adapter's name, for one of the adapter's modes.

    Raises:
        LookupError: there are none.
    """
    module = f"{__name__}.{framework}"
    if not framework.isidentifier() or find_spec(module) is None:
        raise LookupError(f"no step is written by hand in {framework!r}")
    hand = cast(ByHand, import_module(module))
    if mode not in hand.MODES:
        raise LookupError(f"no step is written by hand in {framework!r} for its mode {mode!r}")
    return hand
