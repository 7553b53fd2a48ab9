"""Faults of the loss scaler."""

from __future__ import annotations

import math
from dataclasses import replace

from frameworks.reference.scaler import LossScale
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault


@fault(
    "https://github.com/pytorch/pytorch/issues/98828",
    component="scaler",
    clauses=("scaling.stays-finite",),
)
class ScaleGrowsToInfinity(ReferenceTrainer):
    """The scale has no largest value."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return replace(scaler, maximum=math.inf).adjust(finite)
