"""Quantization-aware training (QAT): computation of dense layers, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from frameworks.contract.capabilities import Capability
from frameworks.contract.post_training import Calibrated, LinearRule
from frameworks.contract.rules import offered


@offered(Capability.QAT)
@dataclass(frozen=True)
class QatRule:
    """The computation of QAT dense layers, as documented by the framework.

    Inputs, weight and outputs are fake-quantized; the product is float32. The
    weight's ranges are those that it has; the others follow the lowest and the highest value by a moving average whose
    first batch is taken whole.

    Attributes:
        linear: the rules of weight, inputs and outputs, and those of the model that it is converted to.
        average: the share of a new batch in the ranges of inputs and outputs.
        gradient: which entries pass their gradient on, as in `FakeRule`.
    """

    linear: LinearRule
    average: float
    gradient: Literal["codes", "range", "everywhere"] = "codes"


@offered(Capability.QAT)
class CalibratedRanges(dict[str, Calibrated]):
    """The ranges of the dense layers that a training pass has reached, by the names of their weights."""
