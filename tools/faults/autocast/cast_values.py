"""Faults of the values that a cast gives, and of the gradients that flow back through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import FORMATS, Array
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault
from tools.faults.autocast.operation_formats import half, low_here


def toward_zero(x: Array, format_name: str) -> Array:
    """x cut off behind the format's last bit."""
    fraction, exponent = np.frexp(x)
    bits = FORMATS[format_name].bits
    return np.asarray(np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits))


Change = Callable[[Array], Array]


@primitive
def altered(x: Array, forward: Change, backward: Change) -> Array:
    """`forward(x)`; the gradient that comes back goes through `backward`."""
    del backward
    return forward(x)


defvjp(altered, lambda _ans, _x, _forward, backward: lambda g: backward(g), None, None)


class _Casts(Operations):
    """Changes what is cast to a low format, and its gradient."""

    def forward(self, value: Array, target: str) -> Array:
        """What is cast."""
        del target
        return value

    def backward(self, gradient: Array, target: str) -> Array:
        """The gradient of what was cast."""
        del target
        return gradient

    def cast(self, x: Tensor, target: str) -> Tensor:
        if not half(target) or x.format == target:
            return super().cast(x, target)
        value = altered(x.value, lambda v: self.forward(v, target), lambda g: self.backward(g, target))
        return super().cast(Tensor(value, x.format, x.owned), target)


@fault("https://github.com/ROCm/aiter/issues/5151", "autocast.matmul-is-low", "autocast.bf16-parity")
class CastsTowardZero(_Casts):
    """A cast cuts bits off instead of rounding to nearest."""

    def forward(self, value: Array, target: str) -> Array:
        return toward_zero(value, target)


@fault("https://github.com/pytorch/pytorch/issues/125186", "autocast.matmul-is-low", "autocast.fp16-parity")
class CastsToFloat16ByWayOfBfloat16(_Casts):
    """A float16 operand is rounded to bfloat16 on the way."""

    def forward(self, value: Array, target: str) -> Array:
        del target
        return self.rounding.round(value, "bfloat16")


@fault(
    "https://github.com/pytorch/pytorch/issues/87979",
    "autocast.backward-in-forward-precision",
    "autocast.bf16-needs-no-scaling",
)
class BackwardInTheDefaultFormat(_Casts):
    """The backward of a bfloat16 region runs in float16, the default."""

    def backward(self, gradient: Array, target: str) -> Array:
        del target
        return self.rounding.round(gradient, "float16")


def same(x: Array) -> Array:
    """x itself."""
    return x


@fault("https://github.com/PaddlePaddle/Paddle/pull/39950", "autocast.backward-in-forward-precision")
class BackwardOutsideTheScope(Operations):
    """Gradients reach a low product unrounded, as if its backward ran outside the scope."""

    def cast(self, x: Tensor, target: str) -> Tensor:
        if x.format == target or "float64" in (x.format, target):
            return super().cast(x, target)
        return Tensor(altered(x.value, lambda v: self.rounding.round(v, target), same), target, x.owned)

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        computing, yielding = self.formats(op, *(x.format for x in operands))
        if not half(computing):
            return super()._product(op, function, *operands)
        value = function(*(self.cast(x, computing).value for x in operands), self.rounding, "float32")
        return Tensor(altered(value, lambda v: self.rounding.round(v, computing), same), yielding)


# gradients of low-precision products


def with_gradient(x: Tensor, backward: Change) -> Tensor:
    """x, whose gradient goes through `backward`."""
    return Tensor(altered(x.value, same, backward), x.format, x.owned)


class _Products(Operations):
    """Changes the gradients of low products by operand."""

    def wrong(self, place: int, gradient: Array) -> Array:
        """The gradient of operand `place`."""
        del place
        return gradient

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        if low_here([x.format for x in operands]) is None:
            return super()._product(op, function, *operands)
        changed = [with_gradient(x, partial(self.wrong, place)) for place, x in enumerate(operands)]
        return super()._product(op, function, *changed)


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/38126",
    "autocast.bf16-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(_Products):
    """The filter gradient of a low convolution has height and width in each other's place."""

    def wrong(self, place: int, gradient: Array) -> Array:
        return gradient.swapaxes(0, 1) if place == 1 and gradient.ndim == 4 else gradient


@fault("https://github.com/keras-team/keras/issues/15479", "autocast.fp16-parity")
class UnscalesWhatWasNotScaled(ReferenceTrainer):
    """Scaling the loss leaves it as it is, so that the gradients are divided by a scale they never had."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss


@fault("https://github.com/pytorch/pytorch/issues/112583", "autocast.final-quality")
class OnlyBiasesLearn(ReferenceTrainer):
    """Weight casts carry no gradient, so that under mixed precision only biases learn."""

    def take_micro_batch(self, gradients: dict[str, Array]) -> None:
        remaining = {n: g if n.endswith("bias") or not self.scope.active else g * 0.0 for n, g in gradients.items()}
        super().take_micro_batch(remaining)


# products of float32 values
