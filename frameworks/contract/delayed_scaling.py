"""What a product in 8-bit formats does whose scales follow the steps before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from fixtures.arrays import Array

Operand = Literal["input", "kernel", "gradient"]
"""What is cast: the inputs, the kernel, and the gradient of the output."""


@dataclass(frozen=True)
class DelayedRule:
    """How scales follow the values of earlier steps, as the framework documents it.

    A scale is the largest absolute value that is remembered, divided by the largest number of the format. It stays as
    it is while the former is 0 or not finite, and is 1 before any step. Values are clipped to the format's range.

    Attributes:
        operands: the format of inputs and kernel, a name in `fixtures.narrow.NARROW`.
        gradients: the format of the output's gradient.
        lag: how many steps ago the newest value was seen that a step's scale may follow.
    """

    operands: str
    gradients: str
    lag: Literal[1, 2]


@dataclass(frozen=True)
class Float8Rule:
    """What dense layers, heads of float32 among them, multiply in training by delayed scaling.

    Each has a product of its own; a step is a window. Gradients pass through casts as they are, those of clipped values
    too. The bias is added after the product, and its gradient is not cast.

    Attributes:
        product: formats and lag.
        skipped: whether what is remembered moves with a window whose update an overflow skips.
        mean: whose mean loss the gradients that are cast belong to, where a window has several micro-batches.
    """

    product: DelayedRule
    skipped: Literal["stays", "moves"] = "stays"
    mean: Literal["window", "micro-batch"] = "window"


@dataclass(frozen=True)
class Remembered:
    """What is remembered of one operand.

    Attributes:
        scale: a value is its code times this scale; as stored, which is where the steps but the last one led to.
        maxima: the largest absolute values of the last steps, as many as the history is long, in any order.
    """

    scale: float
    maxima: Array


@dataclass(frozen=True)
class Passed:
    """What forward and backward of one micro-batch gave.

    Attributes:
        output: (n, m), float32.
        input_gradient: (n, k), float32.
        kernel_gradient: (k, m), float32.
    """

    output: Array
    input_gradient: Array
    kernel_gradient: Array


class DelayedProduct(Protocol):
    """The product of inputs and a kernel that never changes, both cast by scales that follow earlier steps."""

    rule: DelayedRule

    def train(self, *window: tuple[Array, Array]) -> tuple[Passed, ...]:
        """One training step: forward and backward of each micro-batch, given as inputs (n, k) and gradient (n, m)."""

    def predict(self, inputs: Array) -> Array:
        """The product outside training, (n, m)."""

    def remembered(self) -> Mapping[Operand, Remembered]:
        """What is remembered now."""
