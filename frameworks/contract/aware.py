"""Quantization-aware training (QAT): what its dense layers compute, and how their ranges follow the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from frameworks.contract.post_training import LinearRule


@dataclass(frozen=True)
class AwareRule:
    """What dense layers compute in QAT, as the framework documents it.

    Inputs, weight and outputs are brought to codes and back (fake quantization); the product between is float32. The
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
