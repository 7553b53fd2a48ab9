"""Faults of casts: which values, weights and gradients they give, and what is stored, given and promoted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from autograd.extend import defvjp, primitive
from autograd.tracer import isbox

from fixtures.arrays import FORMATS, Array
from frameworks.reference import scope
from frameworks.reference.operations import Operations
from frameworks.reference.rounding import Rounding
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault
from tests.mutants.autocast import half, low_here

Change = Callable[[Array], Array]


@primitive
def altered(x: Array, forward: Change, backward: Change) -> Array:
    """`forward(x)`; the gradient that comes back goes through `backward`."""
    del backward
    return forward(x)


defvjp(altered, lambda _ans, _x, _forward, backward: lambda g: backward(g), None, None)


def same(x: Array) -> Array:
    """x itself."""
    return x


def with_gradient(x: Tensor, backward: Change) -> Tensor:
    """x, whose gradient goes through `backward`."""
    return Tensor(altered(x.value, same, backward), x.format, x.owned)


def toward_zero(x: Array, format_name: str) -> Array:
    """x cut off behind the format's last bit."""
    fraction, exponent = np.frexp(x)
    bits = FORMATS[format_name].bits
    return np.asarray(np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits))


# which values a cast gives


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


@fault(
    "https://github.com/ROCm/aiter/issues/5151",
    component="autocast",
    clauses=("autocast.matmul-is-low", "autocast.bf16-parity"),
)
class CastsTowardZero(_Casts):
    """A cast cuts bits off instead of rounding to nearest."""

    def forward(self, value: Array, target: str) -> Array:
        return toward_zero(value, target)


@fault(
    "https://github.com/pytorch/pytorch/issues/125186",
    component="autocast",
    clauses=("autocast.matmul-is-low", "autocast.fp16-parity"),
)
class CastsToFloat16ByWayOfBfloat16(_Casts):
    """A float16 operand is rounded to bfloat16 on the way."""

    def forward(self, value: Array, target: str) -> Array:
        del target
        return self.rounding.round(value, "bfloat16")


@fault(
    "https://github.com/pytorch/pytorch/issues/87979",
    component="autocast",
    clauses=("autocast.backward-in-forward-precision", "autocast.bf16-needs-no-scaling"),
)
class BackwardInTheDefaultFormat(_Casts):
    """The backward of a bfloat16 region runs in float16, the default."""

    def backward(self, gradient: Array, target: str) -> Array:
        del target
        return self.rounding.round(gradient, "float16")


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/39950",
    component="autocast",
    clauses=("autocast.backward-in-forward-precision",),
)
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


class _Products(Operations):
    """Changes the gradients of low products by operand."""

    def wrong(self, place: int, gradient: Array) -> Array:
        """The gradient of operand `place`."""
        del place
        return gradient

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        if low_here([x.format for x in operands]) is None:
            return super()._product(op, function, *operands)
        changed = [with_gradient(x, lambda g, place=i: self.wrong(place, g)) for i, x in enumerate(operands)]
        return super()._product(op, function, *changed)


@fault(
    "https://github.com/intel/torch-xpu-ops/issues/3023",
    component="autocast",
    clauses=("autocast.bf16-parity", "autocast.fp16-parity"),
    names="weight: ",
)
class WeightGradientIsOff(_Products):
    """The weight gradient of a large low product is a tenth too large."""

    def wrong(self, place: int, gradient: Array) -> Array:
        return gradient * 1.1 if place == 1 and gradient.size > 2**12 else gradient


@fault(
    "https://github.com/pytorch/pytorch/issues/68048",
    component="autocast",
    clauses=("autocast.bf16-parity", "autocast.fp16-parity"),
    names="gradient of bias: relative distance 1,",
)
class BiasGradientIsLost(_Products):
    """The bias of a low product gets no gradient."""

    def wrong(self, place: int, gradient: Array) -> Array:
        return np.zeros_like(gradient) if place == 2 else gradient


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/38126",
    component="autocast",
    clauses=("autocast.bf16-parity",),
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(_Products):
    """The filter gradient of a low convolution has height and width in each other's place."""

    def wrong(self, place: int, gradient: Array) -> Array:
        return gradient.swapaxes(0, 1) if place == 1 and gradient.ndim == 4 else gradient


@fault(
    "https://github.com/keras-team/keras/issues/15479",
    component="autocast",
    clauses=("autocast.fp16-parity",),
)
class UnscalesWhatWasNotScaled(ReferenceTrainer):
    """Scaling the loss leaves it as it is, so that the gradients are divided by a scale they never had."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss


@fault(
    "https://github.com/pytorch/pytorch/issues/112583",
    component="autocast",
    clauses=("autocast.final-quality",),
)
class OnlyBiasesLearn(ReferenceTrainer):
    """Weight casts carry no gradient, so that under mixed precision only biases learn."""

    def take_micro_batch(self, gradients: dict[str, Array]) -> None:
        kept = {n: g if n.endswith("bias") or not self.scope.active else g * 0.0 for n, g in gradients.items()}
        super().take_micro_batch(kept)


# which weights a cast takes


@fault(
    "https://github.com/pytorch/pytorch/issues/105211",
    component="autocast",
    clauses=("autocast.no-grad-then-grad",),
)
class CastWithoutGradientIsReused(Operations):
    """A weight's cast that was made without gradients is cached, and used where gradients are wanted."""

    def __init__(self, rounding: Rounding) -> None:
        super().__init__(rounding)
        self.held: dict[tuple[int, str], tuple[Tensor, Array]] = {}

    def cast(self, x: Tensor, target: str) -> Tensor:
        made = super().cast(x, target)
        if x.owned or x.format == target:
            return made
        if not isbox(x.value):
            self.held[id(x.value), target] = made, x.value
        return self.held.get((id(x.plain()), target), (made, None))[0]


@fault(
    "https://github.com/pytorch/pytorch/issues/142234",
    component="autocast",
    clauses=("autocast.cast-is-fresh",),
)
class EvaluatesWithTheFirstCast(ReferenceTrainer):
    """Evaluation keeps using the casts that it made when it first ran."""

    def evaluate(self, parameters: Mapping[str, Tensor], inputs: Array) -> dict[str, Tensor]:
        self.first_cast = getattr(self, "first_cast", parameters)
        return super().evaluate(self.first_cast, inputs)


@fault(
    "https://github.com/pytorch/pytorch/pull/63552",
    component="autocast",
    clauses=("autocast.cast-is-fresh",),
)
class CastsLiveAsLongAsTheScope(ReferenceTrainer):
    """Casts of weights are cached until the outermost scope ends, whatever the optimizer does meanwhile."""

    def sync_masters(self) -> None:
        if not (self.values and scope.current().active):
            super().sync_masters()


# formats of what is stored, given and promoted


@fault(
    "https://github.com/keras-team/keras/issues/19629",
    component="autocast",
    clauses=("autocast.promotes-to-widest",),
)
class MixedOperandsAreNarrowed(Operations):
    """Operands of two formats are cast to the narrower one."""

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        low = low_here(operands)
        return (low, low) if low in operands and len(set(operands)) > 1 else super().formats(op, *operands)


@fault(
    "https://github.com/keras-team/keras/issues/18985",
    component="autocast",
    clauses=("autocast.promotes-to-widest",),
)
class Float64IsCast(Operations):
    """A scope takes float64 operands for float32 ones."""

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        active = scope.current().active
        return super().formats(op, *("float32" if active and f == "float64" else f for f in operands))


@fault(
    "https://github.com/keras-team/keras/issues/18985",
    component="autocast",
    clauses=("autocast.promotes-to-widest",),
)
class Float64HeadTakesPartOnly(ReferenceTrainer):
    """A float64 head gives its output in float32."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        wide, found = np.dtype(np.float64), super().predict(inputs)
        return {n: v.astype(np.float32) if v.dtype == wide and self.scope.active else v for n, v in found.items()}


@fault(
    "https://github.com/deepspeedai/DeepSpeed/issues/5701",
    component="autocast",
    clauses=("autocast.integers-untouched",),
)
class IdsAreCast(Operations):
    """Token ids are cast with every other input and rounded to what the low format holds."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        low = low_here([table.format])
        kept = ids.value if low is None else self.rounding.round(ids.value.astype(np.float64), low).astype(np.int64)
        return super().embedding(Tensor(np.minimum(kept, table.shape[0] - 1), ids.format), table)


@fault(
    "https://github.com/meta-pytorch/torchtune/issues/2254",
    component="autocast",
    clauses=("autocast.parameters-stay-float32",),
)
class ParametersAreStoredLow(ReferenceTrainer):
    """A run with mixed operations stores its parameters in the low format too."""

    def parameters(self) -> dict[str, Array]:
        found = super().parameters()
        low = FORMATS[self.recipe.precision.format].dtype
        return {n: v.astype(low) for n, v in found.items()} if self.scope.active else found


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/5154",
    component="autocast",
    clauses=("autocast.parameters-stay-float32",),
)
class GradientsStayLow(ReferenceTrainer):
    """Gradients are handed on in the low format that the products gave them in."""

    def gradients(self, window: Any) -> dict[str, Array]:
        found = super().gradients(window)
        low = FORMATS[self.recipe.precision.format].dtype
        return {n: v.astype(low) for n, v in found.items()} if self.scope.active else found


# float32 and the optimizers


@fault(
    "https://github.com/pytorch/pytorch/issues/67384",
    component="autocast",
    clauses=("autocast.float32-parity",),
)
class Float32ProductsInTensorFloat32(Operations):
    """Float32 products round their operands to eleven bits without being asked to."""

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        return super()._product(op, function, *(_eleven_bits(x) for x in operands))


def _eleven_bits(x: Tensor) -> Tensor:
    if x.format != "float32":
        return x

    def rounded(value: Array) -> Array:
        fraction, exponent = np.frexp(value)
        return np.asarray(np.ldexp(np.round(np.ldexp(fraction, 11)), exponent - 11))

    return Tensor(altered(x.value, rounded, same), x.format, x.owned)
