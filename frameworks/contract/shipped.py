"""Operations, layers and optimizers that a framework ships, and functions of a user's, each with examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from fixtures.arrays import Array
from frameworks.contract.capabilities import Capability

Part = Literal["operations", "layers", "optimizers", "functions"]
Values = Mapping[str, Array | None]
"""Outputs and gradients of a part's examples, or by how much an optimizer moved each weight; None where there is no
gradient."""


SHIPPED: Mapping[Part, Capability] = {
    "operations": Capability.SHIPPED_OPERATIONS,
    "layers": Capability.SHIPPED_LAYERS,
    "optimizers": Capability.SHIPPED_OPTIMIZERS,
    "functions": Capability.CONTROL_FLOW,
}


class Shipped(Protocol):
    """Operations, layers, optimizers or functions that have examples, and what a technique makes of them."""

    def names(self) -> tuple[str, ...]:
        """The framework's own names, and the suite's for functions."""

    def techniques(self) -> tuple[str, ...]:
        """The techniques that can be applied to each of them, by the suite's names."""

    def values(self, name: str, technique: str = "") -> Values:
        """The outputs and gradients of the part's examples, by default without a technique.

        The random state is the same at the beginning of each example. A technique may give fewer values, such as
        outputs without gradients.

        Raises:
            Exception: what the framework raises, unchanged.
        """

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        """What an operation of arrays makes of points, and its gradients for an incoming one of ones.

        Args:
            points: an array for each argument, shape (n,), float32 or float64.

        Returns:
            The value and a gradient for each argument, in the formats that the framework gives.

        Raises:
            Exception: what the framework raises, or that the operation takes something else.
        """
