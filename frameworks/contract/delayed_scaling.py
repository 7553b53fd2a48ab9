"""Delayed scaling: 8-bit products whose scales follow previous steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from fixtures.arrays import Array
from frameworks.contract.capabilities import Capability
from frameworks.contract.rules import offered

Operand = Literal["input", "kernel", "gradient"]
"""Cast operands: inputs, kernel, and output gradient."""


@dataclass(frozen=True)
class DelayedRule:
    """How scales follow the values of earlier steps, as the framework documents it.

    A scale is the maximum of the amax history, divided by the largest number of the format. It does not change while
    the maximum is 0 or not finite, and is 1 before any step. Values are clipped to the format's range.

    Attributes:
        operands: the format of inputs and kernel, a name in `fixtures.narrow.NARROW`.
        gradients: the format of the output's gradient.
        lag: age in steps of the newest value that a step's scale may depend on.
    """

    operands: str
    gradients: str
    lag: Literal[1, 2]


@offered(Capability.FLOAT8_TRAINING)
@dataclass(frozen=True)
class Float8Rule:
    """Products of dense layers, including float32 heads, in float8 training by delayed scaling.

    Each has a product of its own; a step is a window. Gradients pass through casts as they are, those of clipped values
    too. The bias is added after the product, and its gradient is not cast.

    Attributes:
        product: formats and lag.
        skipped: whether the amax history moves with a window whose update an overflow skips.
        mean: whose mean loss the gradients that are cast belong to, where a window has several micro-batches.
    """

    product: DelayedRule
    skipped: Literal["stays", "moves"] = "stays"
    mean: Literal["window", "micro-batch"] = "window"


@dataclass(frozen=True)
class AmaxHistory:
    """The delayed-scaling state of one operand.

    Attributes:
        scale: a value is its code times this scale; the stored value, which does not yet include the last step.
        amax: the amax history, in any order.
    """

    scale: float
    amax: Array


@dataclass(frozen=True)
class PassResult:
    """Results of forward and backward of one micro-batch.

    Attributes:
        output: (n, m), float32.
        input_gradient: (n, k), float32.
        kernel_gradient: (k, m), float32.
    """

    output: Array
    input_gradient: Array
    kernel_gradient: Array


class DelayedProduct(Protocol):
    """The product of inputs and a constant kernel, both cast by scales that follow earlier steps."""

    rule: DelayedRule

    def train(self, *window: tuple[Array, Array]) -> tuple[PassResult, ...]:
        """One training step: forward and backward of each micro-batch, given as inputs (n, k) and gradient (n, m)."""

    def predict(self, inputs: Array) -> Array:
        """The product outside training, (n, m)."""

    def amax_histories(self) -> Mapping[Operand, AmaxHistory]:
        """The present delayed-scaling state."""


@offered(Capability.DELAYED_SCALING)
class DelayedProducts(Protocol):
    """Makes delayed-scaling products in 8-bit formats."""

    def __call__(self, kernel: Array, *, history: int, accumulation: int = 1) -> DelayedProduct:
        """A product with `kernel` (k, m), float32.

        Args:
            history: length of the amax history.
            accumulation: micro-batches in a training step.
        Raises:
            Unsupported: DELAYED_SCALING.
        """


@offered(Capability.FLOAT8_TRAINING)
class AmaxHistories(dict[str, Mapping[Operand, AmaxHistory]]):
    """The amax history and scales of each dense layer's operands in float8 training, by the name of its weight."""
