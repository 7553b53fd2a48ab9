"""8-bit Adam: moments as 8-bit codes, with an absmax for each block."""

from __future__ import annotations

from dataclasses import dataclass

from fixtures.arrays import Array
from frameworks.contract.capabilities import Capability
from frameworks.contract.rules import offered


@offered(Capability.ADAM_8BIT)
@dataclass(frozen=True, eq=False)
class EightBitRule:
    """The values of codes, in units of their block's absmax.

    Attributes:
        first: the slot of the first moment, as `Trainer.optimizer_state` calls it.
        second: that of the second moment.
        first_codes: value of each code of the first moment, (256,) float32, from -1 to 1.
        second_codes: the same of the second moment, none of them negative.
    """

    first: str
    second: str
    first_codes: Array
    second_codes: Array
