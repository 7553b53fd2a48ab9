"""Faults of the formats of operands, parameters and gradients: what is promoted, cast and stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from fixtures.arrays import FORMATS, Array
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault
from tools.faults.autocast.operation_formats import low_here


@fault("https://github.com/keras-team/keras/issues/19629", "autocast.promotes-to-widest")
class MixedOperandsAreNarrowed(Operations):
    """Operands of two formats are cast to the narrower one."""

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        low = low_here(operands)
        return (low, low) if low in operands and len(set(operands)) > 1 else super().formats(op, *operands)


@fault("https://github.com/keras-team/keras/issues/18985", "autocast.promotes-to-widest")
class Float64HeadTakesPartOnly(ReferenceTrainer):
    """A float64 head gives its output in float32."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        wide, result = np.dtype(np.float64), super().predict(inputs)
        return {n: v.astype(np.float32) if v.dtype == wide and self.scope.active else v for n, v in result.items()}


@fault("https://github.com/deepspeedai/DeepSpeed/issues/5701", "autocast.integers-untouched")
class IdsAreCast(Operations):
    """Token ids are cast with every other input and rounded to what the low format holds."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        low = low_here([table.format])
        values = ids.value if low is None else self.rounding.round(ids.value.astype(np.float64), low).astype(np.int64)
        return super().embedding(Tensor(np.minimum(values, table.shape[0] - 1), ids.format), table)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/5154", "autocast.parameters-stay-float32")
class GradientsStayLow(ReferenceTrainer):
    """Gradients are handed on in the low format that the products gave them in."""

    def gradients(self, window: Any) -> dict[str, Array]:
        result = super().gradients(window)
        low = FORMATS[self.recipe.precision.format].dtype
        return {n: v.astype(low) for n, v in result.items()} if self.scope.active else result
