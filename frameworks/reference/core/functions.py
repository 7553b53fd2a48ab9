"""The operation of `fixtures.functions`."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from fixtures.functions import SCALE, FunctionUse
from frameworks.contract import FunctionResult


class ReferenceFunction:
    """One method a decision."""

    def used(self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None) -> FunctionResult:
        """The answers to the backward pass, and the gradients of all uses."""
        needs = self.needs(use.needs, recomputed=variant is not None)
        y, z = (np.full_like(inputs[0], name in use.outputs) for name in "yz")
        each = self.backward(inputs, y, z)
        results = [
            self.added([gradient] * use.times) if asked else None for asked, gradient in zip(needs, each, strict=True)
        ]
        return FunctionResult((needs,) * use.times, tuple(results))

    def needs(self, needs: tuple[bool, bool, bool], *, recomputed: bool) -> tuple[bool, bool, bool]:
        """What the backward pass finds when it asks which inputs need a gradient."""
        return needs

    def backward(self, inputs: tuple[Array, Array, Array], y: Array, z: Array) -> tuple[Array, ...]:
        """The gradients that the user wrote, from those of the outputs."""
        a, b, _ = inputs
        return 2.0 * SCALE * y * b, SCALE * y * a + z, z

    def added(self, gradients: list[Array]) -> Array:
        """The gradient of several uses."""
        return np.asarray(sum(gradients[1:], gradients[0]))
