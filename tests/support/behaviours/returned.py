"""Values that can neither be compared nor shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from results.record.outcomes import Outcome
from tests.support.behaviours.registry import BEHAVIOURS, Behaviour


class Unlike:
    """A value that can neither be compared nor shown."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("never equal")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


def returns(value: Any) -> Callable[[], object]:
    return lambda: value


RETURNED: dict[str, tuple[Any, Outcome]] = {
    "not_a_number": (float("nan"), Outcome.FAIL),
    "nothing": (None, Outcome.FAIL),
    "a_generator": ((n for n in ()), Outcome.FAIL),
    "array_of_objects": (np.array([Unlike(), None], dtype=object), Outcome.ERROR),
    "another_shape": (np.ones((3, 0, 2)), Outcome.FAIL),
    "value_that_cannot_be_compared": (Unlike(), Outcome.ERROR),
}
BEHAVIOURS.update({name: Behaviour(returns(value), outcome) for name, (value, outcome) in RETURNED.items()})
