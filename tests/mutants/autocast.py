"""Faults of the precision scope: which format an operation, its gradient or a whole model runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from autograd.extend import defvjp, primitive
from autograd.tracer import isbox

from fixtures.arrays import FORMATS, Array
from fixtures.layers import Dense, Layer
from fixtures.model import Model
from fixtures.recipe import FLOAT32, Precision, Recipe
from frameworks.reference import ReferenceFramework, scope
from frameworks.reference.network import Pass
from frameworks.reference.ops import Operations
from frameworks.reference.rounding import Rounding
from frameworks.reference.scope import LOW, Scope
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault

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


def half(format_name: str) -> bool:
    """Whether the format is a 16-bit one."""
    return format_name in ("float16", "bfloat16")


def low_here(operands: Sequence[str]) -> str | None:
    """The scope's low format, if one is open and nothing is float64."""
    current = scope.current()
    return current.precision.format if current.active and "float64" not in operands else None


def toward_zero(x: Array, format_name: str) -> Array:
    """x cut off behind the format's last bit."""
    fraction, exponent = np.frexp(x)
    bits = FORMATS[format_name].bits
    return np.asarray(np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits))


class _Lowers(Operations):
    """Runs the operations in `lowered` in the scope's low format."""

    lowered: frozenset[str] = frozenset()

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        low = low_here(operands)
        return (low, low) if op in self.lowered and low else super().formats(op, *operands)


# what runs low that should run wide


@fault(
    "https://github.com/tensorflow/tensorflow/issues/52236",
    component="autocast",
    clauses=("autocast.sum-is-wide",),
)
class SumsAreLow(_Lowers):
    """Sum and mean over many elements are computed in the low format."""

    lowered = frozenset({"sum", "mean"})


@fault(
    "https://github.com/pytorch/pytorch/pull/76661",
    component="autocast",
    clauses=("autocast.sum-is-wide",),
)
class NormsAreLow(_Lowers):
    """Variance and norm square their low operands in the low format."""

    lowered = frozenset({"variance", "norm"})


@fault(
    "https://github.com/pytorch/pytorch/pull/82196",
    component="autocast",
    clauses=("autocast.softmax-is-wide",),
)
class SoftmaxIsLow(_Lowers):
    """Softmax and its kin are computed in the low format."""

    lowered = frozenset({"softmax", "log_softmax", "logsumexp"})


@fault(
    "https://github.com/pytorch/pytorch/pull/77623",
    component="autocast",
    clauses=("autocast.loss-is-wide",),
)
class CrossEntropyIsLow(_Lowers):
    """Cross-entropy is on the list of low operations."""

    lowered = frozenset({"cross_entropy"})


@fault(
    "https://github.com/keras-team/keras/pull/20014",
    component="autocast",
    clauses=("autocast.loss-is-wide", "autocast.policy-does-not-leak"),
)
class LossFollowsThePolicy(_Lowers):
    """The squared error is computed in the policy's format."""

    lowered = frozenset({"squared_error"})


@fault(
    "https://github.com/tensorflow/tensorflow/issues/47156",
    component="autocast",
    clauses=("autocast.norm-layers-are-wide",),
)
class LayerNormIsLow(_Lowers):
    """Layer norm takes its statistics in the low format."""

    lowered = frozenset({"layer_norm", "rms_norm"})


@fault(
    "https://github.com/keras-team/keras-core/pull/412",
    component="autocast",
    clauses=("autocast.norm-layers-are-wide",),
)
class BatchNormIsLow(_Lowers):
    """Batch norm takes its statistics in the low format."""

    lowered = frozenset({"batch_norm"})


@fault(
    "https://github.com/microsoft/tensorflow-directml-plugin/pull/321",
    component="autocast",
    clauses=("autocast.norm-layers-are-wide",),
)
class RunningStatisticsAreLow(ReferenceTrainer):
    """Batch norm's running statistics are kept in the low format."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        super().update_running_statistics(path, mean, variance, count, momentum)
        if self.scope.active:
            low = self.recipe.precision.format
            self.statistics = {name: self.rounding.round(value, low) for name, value in self.statistics.items()}


@fault(
    "https://github.com/pytorch/pytorch/pull/135299",
    component="autocast",
    clauses=("autocast.exp-pow-are-wide",),
)
class ExponentialsAreLow(_Lowers):
    """Exponentials and powers are computed in the low format."""

    lowered = frozenset({"exp", "expm1", "pow", "square"})


# what runs wide, or nowhere, that should run low


class _Widens(Operations):
    """Runs the operations in `widened` in float32."""

    widened: frozenset[str] = frozenset()

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        return ("float32", "float32") if op in self.widened and low_here(operands) else super().formats(op, *operands)


@fault(
    "https://github.com/keras-team/keras/issues/15806",
    component="autocast",
    clauses=("autocast.matmul-is-low", "autocast.layers-honour-policy"),
)
class ConvolutionIgnoresThePolicy(_Widens):
    """A convolution runs in float32 under any policy."""

    widened = frozenset({"conv2d"})


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/55713",
    component="autocast",
    clauses=("autocast.matmul-is-low",),
)
class BatchedProductIsOnNoList(_Widens):
    """Batched products and attention are on no list, so they stay in float32."""

    widened = frozenset({"batched_matmul", "attention"})


class _DeafPass(Pass):
    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        if not isinstance(layer, Dense):
            return super().layer(path, layer, x)
        with scope.opened(Scope()):
            return super().layer(path, layer, x)


@fault(
    "https://github.com/tensorflow/tensorflow/issues/53470",
    component="autocast",
    clauses=("autocast.layers-honour-policy",),
)
class DenseLayerReadsAnotherPolicy(ReferenceTrainer):
    """The product is on the low list, but one layer type reads another policy and runs it in float32."""

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return _DeafPass(self.ops, parameters, self, training)


@fault(
    "https://github.com/tensorflow/tensorflow/issues/59678",
    component="autocast",
    clauses=("autocast.layers-honour-policy",),
    raises=True,
)
class DropoutFailsInHalf(Operations):
    """Dropout of low values fails."""

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        if half(x.format):
            raise TypeError(f"dropout has no kernel for {x.format}")
        return super().dropout(x, mask, rate)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/60052",
    component="autocast",
    clauses=("autocast.user-lists",),
)
class UserListIsIntersected(ReferenceFramework):
    """Names on the user's lists count only where they are on the built-in ones."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        return super().autocast(precision, enabled=enabled, wide=set(wide) - LOW, low=set(low) & LOW)  # type: ignore[arg-type]


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    component="autocast",
    clauses=("autocast.matmul-is-low", "autocast.request-is-honoured-or-refused"),
)
class ScopeIsInert(ReferenceFramework):
    """The scope does nothing on this device and says nothing."""

    def autocast(self, precision: Precision, **_: Any) -> AbstractContextManager[None]:
        del precision
        return nullcontext()


@fault(
    "https://github.com/unslothai/unsloth-zoo/pull/962",
    component="autocast",
    clauses=("autocast.request-is-honoured-or-refused",),
)
class TrainsInFloat32InSilence(ReferenceFramework):
    """A run in low precision is accepted and trains in float32."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        return super().trainer(model, recipe.but(precision=FLOAT32), weights)


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
        changed = [with_gradient(x, lambda g, place=i: self.wrong(place, g)) for i, x in enumerate(operands)]  # type: ignore[misc]
        return super()._product(op, function, *changed)


@fault(
    "https://github.com/intel/torch-xpu-ops/issues/3023",
    component="autocast",
    clauses=("autocast.bf16-parity", "autocast.fp16-parity"),
)
class WeightGradientIsOff(_Products):
    """The weight gradient of a large low product is a tenth too large."""

    def wrong(self, place: int, gradient: Array) -> Array:
        return gradient * 1.1 if place == 1 and gradient.size > 2**12 else gradient


@fault(
    "https://github.com/pytorch/pytorch/issues/68048",
    component="autocast",
    clauses=("autocast.bf16-parity", "autocast.fp16-parity"),
)
class BiasGradientIsLost(_Products):
    """The bias of a low product gets no gradient."""

    def wrong(self, place: int, gradient: Array) -> Array:
        return np.zeros_like(gradient) if place == 2 else gradient


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/38126",
    component="autocast",
    clauses=("autocast.bf16-parity",),
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


class PolicyOfAll:
    """Where `PolicyIsGlobal` keeps its policy."""

    latest = Scope()


@fault(
    "https://github.com/keras-team/keras/pull/20014",
    component="autocast",
    clauses=("autocast.policy-does-not-leak",),
)
class PolicyIsGlobal(ReferenceTrainer):
    """The precision of the model that was made last holds for every model."""

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        return PolicyOfAll.latest

    @scope.setter
    def scope(self, value: Scope) -> None:
        PolicyOfAll.latest = value


# how far a scope reaches


class _Scopes(ReferenceFramework):
    """A framework whose scopes are opened by `_open`."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        with scope.opened(wanted):
            yield

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        return self._open(Scope(precision, frozenset(wide), frozenset(low)) if enabled else Scope())


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    component="autocast",
    clauses=("autocast.scope-restored", "autocast.settings-restored"),
)
class ScopeStaysOpen(_Scopes):
    """The end of a scope leaves its setting behind."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        scope.enter(wanted)
        yield


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    component="autocast",
    clauses=("autocast.scope-restored", "autocast.settings-restored"),
)
class FormatStaysBehind(_Scopes):
    """A scope writes its format to a process-wide setting that nobody puts back."""

    latest = "float32"

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        self.latest = wanted.precision.format
        with super()._open(wanted):
            yield

    def global_state(self) -> dict[str, str]:
        return super().global_state() | {"format": self.latest}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        self.latest = state["format"]
        super().restore_global_state(state)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/47985",
    component="autocast",
    clauses=("autocast.scope-restored", "autocast.scope-nests"),
)
class ErrorLeavesTheScopeOpen(_Scopes):
    """An exception that leaves a scope skips what would have closed it."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        former = scope.current()
        scope.enter(wanted)
        yield
        scope.enter(former)


@fault(
    "https://github.com/facebookresearch/fairscale/issues/1199",
    component="autocast",
    clauses=("autocast.scope-nests",),
)
class InnerFormatIsIgnored(_Scopes):
    """A scope inside another keeps the outer one's format."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        outer = scope.current()
        with super()._open(outer if outer.active and wanted.active else wanted):
            yield


@fault(
    "https://github.com/pytorch/pytorch/pull/71169",
    component="autocast",
    clauses=("autocast.nested-disable", "autocast.scope-nests"),
)
class EndSwitchesOff(_Scopes):
    """The end of an inner scope switches mixed precision off instead of putting the outer setting back."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        with super()._open(wanted):
            yield
        scope.enter(Scope())


@fault(
    "https://github.com/huggingface/accelerate/pull/1740",
    component="autocast",
    clauses=("autocast.nested-disable", "autocast.disabled-is-identity"),
)
class DisabledIsIgnored(_Scopes):
    """A region that is to be switched off is opened like any other."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        del enabled
        return super().autocast(precision, wide=wide, low=low)


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
