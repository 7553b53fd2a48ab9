"""Moments of Adam that are kept in 8-bit codes, a largest magnitude for each block of them."""

from __future__ import annotations

from dataclasses import dataclass

from fixtures.arrays import Array


@dataclass(frozen=True, eq=False)
class EightBitRule:
    """What codes stand for, in units of the largest magnitude of their block.

    Attributes:
        first: the slot of the first moment, as `Trainer.optimizer_state` calls it.
        second: that of the second moment.
        first_codes: what each code of the first moment stands for, (256,) float32, from -1 to 1.
        second_codes: the same of the second moment, none of them negative.
    """

    first: str
    second: str
    first_codes: Array
    second_codes: Array
