"""Faults of mixed precision: scopes, casts, and the formats of operations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive
from autograd.tracer import isbox

from fixtures.arrays import FORMATS, Array
from fixtures.data import exact_batch
from fixtures.model import Dense, Layer, Model
from fixtures.models import exact_linear
from fixtures.recipe import FLOAT16, FLOAT32, Precision, Recipe
from frameworks.contract import Attempt, Capability
from frameworks.operations import CATALOGUE
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import primitives, scope
from frameworks.reference.core.arithmetic import Operations, Round, Variance
from frameworks.reference.core.network import Pass
from frameworks.reference.core.rounding import Rounding
from frameworks.reference.core.scope import LOW, Scope
from frameworks.reference.core.tape import Tensor, plain
from frameworks.reference.training.forward import Layers
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/105211", "autocast.no-grad-then-grad")
class CastWithoutGradientIsReused(Operations):
    """The cache holds a cast of a weight that was made without gradients, and training uses it."""

    def __init__(self, rounding: Rounding, variance: Variance = "centred") -> None:
        super().__init__(rounding, variance)
        self.casts: dict[tuple[int, str], tuple[Tensor, Array]] = {}

    def cast(self, x: Tensor, target: str) -> Tensor:
        result = super().cast(x, target)
        if x.owned or x.format == target:
            return result
        if not isbox(x.value):
            self.casts[id(x.value), target] = result, x.value
        return self.casts.get((id(x.plain()), target), (result, None))[0]


@fault("https://github.com/pytorch/pytorch/issues/142234", "autocast.cast-is-fresh")
class EvaluatesWithTheFirstCast(ReferenceTrainer):
    """Evaluation reuses the casts of its first run."""

    def evaluate(self, parameters: Mapping[str, Tensor], inputs: Array) -> dict[str, Tensor]:
        self.first_cast = getattr(self, "first_cast", parameters)
        return super().evaluate(self.first_cast, inputs)


@fault("https://github.com/pytorch/pytorch/pull/63552", "autocast.cast-is-fresh")
class CastsLiveAsLongAsTheScope(ReferenceTrainer):
    """The cache of weight casts lasts until the outermost scope ends, across optimizer steps."""

    def sync_masters(self) -> None:
        if not (self.values and scope.current().active):
            super().sync_masters()


Change = Callable[[Array], Array]


@primitive
def apply_changes(x: Array, forward: Change, backward: Change) -> Array:
    """`forward(x)`; the gradient that comes back goes through `backward`."""
    del backward
    return forward(x)


defvjp(apply_changes, lambda _ans, _x, _forward, backward: lambda g: backward(g), None, None)


class _Casts(Operations):
    """Changes what is cast to a low format, and its gradient."""

    def forward(self, value: Array, target: str) -> Array:
        """What is cast."""
        return value

    def backward(self, gradient: Array, target: str) -> Array:
        """The gradient of what was cast."""
        return gradient

    def cast(self, x: Tensor, target: str) -> Tensor:
        if not half(target) or x.format == target:
            return super().cast(x, target)
        value = apply_changes(x.value, lambda v: self.forward(v, target), lambda g: self.backward(g, target))
        return super().cast(Tensor(value, x.format, x.owned), target)


@fault("https://github.com/ROCm/aiter/issues/5151", "autocast.matmul-is-low", "autocast.bf16-parity")
class CastsTowardZero(_Casts):
    """A cast cuts bits off instead of rounding to nearest."""

    def forward(self, value: Array, target: str) -> Array:
        fraction, exponent = np.frexp(value)
        bits = FORMATS[target].bits
        return np.asarray(np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits))


@fault("https://github.com/pytorch/pytorch/issues/125186", "autocast.matmul-is-low", "autocast.fp16-parity")
class CastsToFloat16ByWayOfBfloat16(_Casts):
    """A float16 operand is first rounded to bfloat16."""

    def forward(self, value: Array, target: str) -> Array:
        return self.rounding.round(value, "bfloat16")


@fault(
    "https://github.com/pytorch/pytorch/issues/87979",
    "autocast.backward-in-forward-precision",
    "autocast.bf16-needs-no-scaling",
)
class BackwardInTheDefaultFormat(_Casts):
    """The backward of a bfloat16 region runs in float16, the default."""

    def backward(self, gradient: Array, target: str) -> Array:
        return self.rounding.round(gradient, "float16")


def same(x: Array) -> Array:
    """x itself."""
    return x


@fault("https://github.com/PaddlePaddle/Paddle/pull/39950", "autocast.backward-in-forward-precision")
class BackwardOutsideTheScope(Operations):
    """Gradients reach a low-precision product unrounded, as if its backward pass ran outside the scope."""

    def cast(self, x: Tensor, target: str) -> Tensor:
        if x.format == target or "float64" in (x.format, target):
            return super().cast(x, target)
        return Tensor(apply_changes(x.value, lambda v: self.rounding.round(v, target), same), target, x.owned)

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        computing, yielding = self.formats(op, *(x.format for x in operands))
        if not half(computing):
            return super()._product(op, function, *operands)
        value = function(*(self.cast(x, computing).value for x in operands), self.rounding, "float32")
        return Tensor(apply_changes(value, lambda v: self.rounding.round(v, computing), same), yielding)


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/38126",
    "autocast.bf16-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(Operations):
    """The filter gradient of a low convolution has height and width in each other's place."""

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        x, weight, *rest = operands
        if len(weight.shape) == 4 and low_here([operand.format for operand in operands]) is not None:
            weight = replace(weight, value=apply_changes(weight.value, same, lambda g: g.swapaxes(0, 1)))
        return super()._product(op, function, x, weight, *rest)


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


@fault("https://github.com/ROCm/rocm-libraries/pull/11325", "autocast.backward-in-forward-precision")
class SubnormalsLostInCast(Operations):
    """A cast to float16 flushes subnormal results to zero."""

    def cast(self, x: Tensor, target: str) -> Tensor:
        y = super().cast(x, target)
        if target != "float16" or x.format == target:
            return y
        tiny = np.abs(y.plain()) < 2.0 ** FORMATS["float16"].smallest_exponent
        return Tensor(anp.where(tiny, 0.0, y.value), y.format, y.owned)


class _Scopes(ReferenceFramework):
    """A framework whose scopes are opened by `_open`."""

    def _open(self, requested: Scope) -> AbstractContextManager[None]:
        return scope.open_scope(requested)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        return self._open(Scope(precision, frozenset(wide), frozenset(low)) if enabled else Scope())


class _ReusedScope(AbstractContextManager[None]):
    """A scope that can be opened several times and stores one former scope."""

    def __init__(self, opened: Scope) -> None:
        self.opened = opened
        self.former = Scope()

    def __enter__(self) -> None:
        self.former = scope.current()
        scope.enter(self.opened)

    def __exit__(self, *_: object) -> None:
        scope.enter(self.former)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/2957", "autocast.scope-restored")
class ScopesOfOneSettingAreOneObject(_Scopes):
    """Scopes of equal settings are one object with one stored state, so a nested one stays open."""

    scopes: ClassVar[dict[Scope, _ReusedScope]] = {}

    def _open(self, requested: Scope) -> AbstractContextManager[None]:
        return self.scopes.setdefault(requested, _ReusedScope(requested))


@fault("https://github.com/deepspeedai/DeepSpeed/pull/7883", "autocast.scope-nests", "laws.operations")
class OuterListsStay(_Scopes):
    """An inner scope adds its user lists to those of the outer scope instead of replacing them."""

    @contextmanager
    def _open(self, requested: Scope) -> Iterator[None]:
        outer = scope.current()
        lists = replace(requested, wide=requested.wide | outer.wide, low=requested.low | outer.low)
        with scope.open_scope(requested if requested == Scope() else lists):
            yield


@fault("", "autocast.dropout-scales-what-it-keeps")
class MomentIsSpent(ReferenceTrainer):
    """The state of a forward pass serves one replay, so the backward pass of a second loss draws new masks."""

    def _backward(self, batch: Any, items: int) -> Any:
        self._spent: list[Any] = []
        return super()._backward(batch, items)

    def recompute_segment(self, moment: Any) -> AbstractContextManager[Any]:
        if any(moment is spent for spent in self._spent):
            return super().recompute_segment(type(moment)(self.draws, moment.scope))
        self._spent.append(moment)
        return super().recompute_segment(moment)


@fault("", "autocast.matmul-is-low")
class PointwiseConvolutionsStayWide(Operations):
    """At level O1 a convolution with a 1x1 kernel is not on the list of low-precision operations and runs in
    float32."""

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        if weight.shape[0] != 1:
            return super().convolution(x, weight, bias, stride, padding)
        return self._product(
            "pointwise_conv2d",
            lambda a, w, b, r, f: primitives.convolution(a, w, b, stride, padding, r, f),
            x,
            weight,
            bias,
        )


def _softmax_from_zero(x: Any, r: Round) -> Any:
    powers = r(anp.exp(r(x - np.maximum(plain(x).max(axis=-1, keepdims=True), 0.0))))
    return powers / r(anp.sum(powers, axis=-1, keepdims=True), x.shape[-1])


@fault("", "autocast.scope-nests")
class SoftmaxMaximumStartsAtZero(Operations):
    """Softmax subtracts the larger of zero and the largest logit, so rows whose logits are all below -104 give NaN."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        return super().apply(op, _softmax_from_zero if op == "softmax" else function, *operands, keep=keep)


_INNER = frozenset({"inner segment"})


@fault("https://github.com/pytorch/pytorch/pull/71169", "recompute.replays-autocast")
class InnerReplayLosesTheScope(ReferenceTrainer):
    """The replay of a nested recomputed segment does not open the scope of its forward pass."""

    def _recompute(
        self, layers: Layers, parameters: Mapping[str, Tensor], x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        if index is not None:
            return super()._recompute(layers, parameters, x, depth, index)
        now = scope.current()
        with scope.open_scope(replace(now, wide=now.wide | _INNER)):
            return super()._recompute(layers, parameters, x, depth, index)

    def replay_precision(self, former: scope.Scope) -> AbstractContextManager[None]:
        return nullcontext() if former.wide & _INNER else super().replay_precision(former)


def low_here(operands: Sequence[str]) -> str | None:
    """The scope's low format, if one is open and nothing is float64."""
    current = scope.current()
    return current.precision.format if current.active and "float64" not in operands else None


class _Lowers(Operations):
    """Runs the operations in `lowered` in the scope's low format."""

    lowered: frozenset[str] = frozenset()

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        low = low_here(operands)
        return (low, low) if op in self.lowered and low else super().formats(op, *operands)


@fault("https://github.com/tensorflow/tensorflow/issues/52236", "autocast.sum-is-wide")
class SumsAreLow(_Lowers):
    """Sum and mean over many elements are computed in the low format."""

    lowered = frozenset({"sum", "mean"})


@fault("https://github.com/pytorch/pytorch/pull/76661", "autocast.sum-is-wide")
class NormsAreLow(_Lowers):
    """Variance and norm square their low operands in the low format."""

    lowered = frozenset({"variance", "norm"})


@fault("https://github.com/pytorch/pytorch/pull/82196", "autocast.softmax-is-wide")
class SoftmaxIsLow(_Lowers):
    """Softmax and log-softmax are computed in the low format."""

    lowered = frozenset({"softmax", "log_softmax", "logsumexp"})


@fault("https://github.com/pytorch/pytorch/pull/77623", "autocast.loss-is-wide")
class CrossEntropyIsLow(_Lowers):
    """Cross-entropy is on the list of low operations."""

    lowered = frozenset({"cross_entropy"})


@fault("https://github.com/keras-team/keras/pull/20014", "autocast.loss-is-wide", "autocast.policy-does-not-leak")
class LossFollowsThePolicy(_Lowers):
    """The squared error is computed in the policy's format."""

    lowered = frozenset({"squared_error"})


@fault("https://github.com/tensorflow/tensorflow/issues/47156", "autocast.norm-layers-are-wide")
class LayerNormIsLow(_Lowers):
    """Layer norm takes its statistics in the low format."""

    lowered = frozenset({"layer_norm", "rms_norm"})


@fault("https://github.com/microsoft/tensorflow-directml-plugin/pull/321", "autocast.norm-layers-are-wide")
class RunningStatisticsAreLow(ReferenceTrainer):
    """Batch norm's running statistics are kept in the low format."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        super().update_running_statistics(path, mean, variance, count, momentum)
        if self.scope.active:
            low = self.recipe.precision.format
            self.statistics = {name: self.rounding.round(value, low) for name, value in self.statistics.items()}


@fault("https://github.com/pytorch/pytorch/pull/135299", "autocast.exp-pow-are-wide")
class ExponentialsAreLow(_Lowers):
    """Exponentials and powers are computed in the low format."""

    lowered = frozenset({"exp", "expm1", "pow", "square"})


class _Widens(Operations):
    """Runs the operations in `widened` in float32."""

    widened: frozenset[str] = frozenset()

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        return ("float32", "float32") if op in self.widened and low_here(operands) else super().formats(op, *operands)


@fault("https://github.com/keras-team/keras/issues/15806", "autocast.matmul-is-low", "autocast.layers-honour-policy")
class ConvolutionIgnoresThePolicy(_Widens):
    """A convolution runs in float32 under any policy."""

    widened = frozenset({"conv2d"})


@fault("https://github.com/PaddlePaddle/Paddle/pull/55713", "autocast.matmul-is-low")
class BatchedProductIsOnNoList(_Widens):
    """Batched products and attention are on no list, so they stay in float32."""

    widened = frozenset({"batched_matmul", "attention"})


class _DeafPass(Pass):
    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        if not isinstance(layer, Dense):
            return super().layer(path, layer, x)
        with scope.open_scope(Scope()):
            return super().layer(path, layer, x)


@fault("https://github.com/tensorflow/tensorflow/issues/53470", "autocast.layers-honour-policy")
class DenseLayerReadsAnotherPolicy(ReferenceTrainer):
    """One layer type reads another policy, so its product runs in float32."""

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return _DeafPass(self.ops, parameters, self, training)


def half(format_name: str) -> bool:
    """Returns whether the format is a 16-bit one."""
    return format_name in ("float16", "bfloat16")


@fault("https://github.com/tensorflow/tensorflow/issues/59678", "autocast.layers-honour-policy", raises=True)
class DropoutFailsInHalf(Operations):
    """Dropout of 16-bit values raises."""

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        if half(x.format):
            raise TypeError(f"dropout has no kernel for {x.format}")
        return super().dropout(x, mask, rate)


@fault("https://github.com/PaddlePaddle/Paddle/pull/60052", "autocast.user-lists")
class UserListIsIntersected(_Scopes):
    """Names on the user's lists count only where they are on the built-in ones."""

    def _open(self, requested: Scope) -> AbstractContextManager[None]:
        return super()._open(replace(requested, wide=requested.wide - LOW, low=requested.low & LOW))


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    "autocast.matmul-is-low",
    "autocast.request-is-honoured-or-refused",
)
class ScopeIsInert(ReferenceFramework):
    """The scope has no effect on this device and does not warn."""

    def autocast(self, precision: Precision, **_: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.AUTOCAST_SCOPE: self._casts}

    def _casts(self) -> bool:
        with self.autocast(FLOAT16):
            return self.run_op("matmul", *CATALOGUE["matmul"]()).dtype == "float16"


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "autocast.request-is-honoured-or-refused")
class TrainsInFloat32InSilence(ReferenceFramework):
    """A run in low precision is accepted and trains in float32."""

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        return super().run(model, recipe.replace(precision=FLOAT32), weights)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.O1_FLOAT16: self._trains_low}

    def _trains_low(self) -> bool:
        outputs = self.run(exact_linear(), Recipe(precision=FLOAT16)).predict(exact_batch().inputs)
        return outputs["output"].dtype == np.float16


@fault("https://github.com/keras-team/keras/pull/20014", "autocast.policy-does-not-leak")
class PolicyIsGlobal(ReferenceTrainer):
    """The precision of the newest model applies to every model."""

    latest = Scope()

    @property
    def scope(self) -> Scope:
        return self.latest

    @scope.setter
    def scope(self, value: Scope) -> None:
        type(self).latest = value


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "autocast.scope-restored", "autocast.settings-restored")
class ScopeStaysOpen(_Scopes):
    """The end of a scope does not restore the former setting."""

    @contextmanager
    def _open(self, requested: Scope) -> Iterator[None]:
        scope.enter(requested)
        yield


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "autocast.scope-restored", "autocast.settings-restored")
class FormatStaysBehind(_Scopes):
    """A scope writes its format to a process-wide setting that is never restored."""

    latest = "float32"

    @contextmanager
    def _open(self, requested: Scope) -> Iterator[None]:
        self.latest = requested.precision.format
        with super()._open(requested):
            yield

    def global_state(self) -> dict[str, str]:
        return super().global_state() | {"format": self.latest}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        self.latest = state["format"]
        super().restore_global_state(state)


@fault("https://github.com/facebookresearch/fairscale/issues/1199", "autocast.scope-nests")
class InnerFormatIsIgnored(_Scopes):
    """A scope inside another keeps the outer one's format."""

    @contextmanager
    def _open(self, requested: Scope) -> Iterator[None]:
        outer = scope.current()
        with super()._open(outer if outer.active and requested.active else requested):
            yield


@fault("https://github.com/pytorch/pytorch/pull/71169", "autocast.nested-disable", "autocast.scope-nests")
class EndSwitchesOff(_Scopes):
    """The end of an inner scope disables mixed precision instead of restoring the outer setting."""

    @contextmanager
    def _open(self, requested: Scope) -> Iterator[None]:
        with super()._open(requested):
            yield
        scope.enter(Scope())


@fault(
    "https://github.com/huggingface/accelerate/pull/1740", "autocast.nested-disable", "autocast.disabled-is-identity"
)
class DisabledIsIgnored(_Scopes):
    """A region with autocast disabled is opened as an enabled one."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        return super().autocast(precision, wide=wide, low=low)


@fault("https://github.com/keras-team/keras/issues/19629", "autocast.promotes-to-widest")
class MixedOperandsAreNarrowed(Operations):
    """Operands of two formats are cast to the narrower one."""

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        low = low_here(operands)
        return (low, low) if low in operands and len(set(operands)) > 1 else super().formats(op, *operands)


@fault("https://github.com/keras-team/keras/issues/18985", "autocast.promotes-to-widest")
class Float64HeadTakesPartOnly(ReferenceTrainer):
    """A float64 head returns its output in float32."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        wide, result = np.dtype(np.float64), super().predict(inputs)
        return {n: v.astype(np.float32) if v.dtype == wide and self.scope.active else v for n, v in result.items()}


@fault("https://github.com/deepspeedai/DeepSpeed/issues/5701", "autocast.integers-untouched")
class IdsAreCast(Operations):
    """Token ids are cast to the low format with the other inputs and rounded."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        low = low_here([table.format])
        values = ids.value if low is None else self.rounding.round(ids.value.astype(np.float64), low).astype(np.int64)
        return super().embedding(Tensor(np.minimum(values, table.shape[0] - 1), ids.format), table)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/5154", "autocast.parameters-stay-float32")
class GradientsStayLow(ReferenceTrainer):
    """Gradients keep the low format of the products."""

    def gradients(self, window: Any) -> dict[str, Array]:
        result = super().gradients(window)
        low = FORMATS[self.recipe.precision.format].dtype
        return {n: v.astype(low) for n, v in result.items()} if self.scope.active else result
