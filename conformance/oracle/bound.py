"""A derived tolerance, with its derivation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bound:
    """A derived tolerance.

    Attributes:
        value: the largest deviation that a correct implementation may show.
        derivation: method, samples, multiplier, seed and so on, stored with the verdict.
    """

    value: float
    derivation: Mapping[str, Any]
