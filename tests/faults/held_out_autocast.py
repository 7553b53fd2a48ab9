"""Held-out faults of autocast: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import FORMATS, Array
from fixtures.layers import Activation, Layer, Residual
from fixtures.recipe import Precision
from frameworks.reference import ReferenceFramework, products, scope
from frameworks.reference.arithmetic import Operations, Round, normalise, softmax
from frameworks.reference.network import Pass
from frameworks.reference.products import product
from frameworks.reference.rounding import Rounding
from frameworks.reference.special import erf
from frameworks.reference.tensor import Tensor, plain, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@primitive
def _through(x: Array, change: Callable[[Array], Array]) -> Array:
    del change
    return x


defvjp(_through, lambda _ans, _x, change: lambda gradient: change(gradient), None)


def changed(x: Tensor, change: Callable[[Array], Array]) -> Tensor:
    """The same tensor, whose gradient `change` turns into another one."""
    return Tensor(_through(x.value, change), x.format, x.owned)


@fault(
    "https://github.com/deepspeedai/DeepSpeed/issues/581",
    component="layers",
    clauses=("autocast.norm-layers-are-wide",),
)
class EpsilonInHalf(Operations):
    """Layer norm of float16 values adds its epsilon in float16, where 1e-12 is zero: a constant row becomes NaN."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        return super().layer_norm(x, scale, shift, float(np.float16(epsilon)) if x.format == "float16" else epsilon)


@fault("https://github.com/ultralytics/ultralytics/pull/24990", component="layers", clauses=("autocast.fp16-parity",))
class ScoresBeforeScale(Operations):
    """Attention holds the product of queries and keys in float16's range before it divides by the root of the width:
    a score of 40,000 becomes infinite."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        computing, yielding = self.formats("attention", query.format, key.format, value.format)
        if computing != "float16":
            return super().attention(query, key, value)
        q, k, v = (self.cast(x, computing) for x in (query, key, value))
        product = products.product(q.value, anp.swapaxes(k.value, -1, -2), self.rounding, "float32")
        high = np.where(np.abs(plain(product)) > FORMATS["float16"].largest, np.inf, 1.0)
        scores = rounded(product * high * (1.0 / np.sqrt(q.shape[-1])), self.rounding, "float32")
        shares = softmax(scores, lambda x, n=1: rounded(x, self.rounding, "float32", n))
        weights = Tensor(rounded(shares, self.rounding, computing), computing)
        if self.tape:
            self.tape.keep(q, k, v, weights)
        mixed = products.product(weights.value, v.value, self.rounding, computing)
        return self.cast(Tensor(rounded(mixed, self.rounding, computing), computing), yielding)


@fault("", component="autocast", clauses=("autocast.scope-nests",))
class OuterListsStay(ReferenceFramework):
    """An inner scope adds its user lists to those of the scope around it instead of taking their place."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        return self._added(precision, frozenset(wide), frozenset(low)) if enabled else scope.opened(scope.Scope())

    @contextmanager
    def _added(self, precision: Precision, wide: frozenset[str], low: frozenset[str]) -> Iterator[None]:
        around = scope.current()
        with scope.opened(scope.Scope(precision, wide | around.wide, low | around.low)):
            yield


@fault("https://github.com/apache/mxnet/pull/20338", component="autocast", clauses=("autocast.settings-restored",))
class SubnormalsFlushedForGood(ReferenceTrainer):
    """A run in mixed precision has subnormal numbers flushed to zero, in every later run of the process too."""

    flushing: ClassVar[list[bool]] = []

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.recipe.precision.level != "O0":
            self.flushing[:] = [True]
        if self.flushing:
            gradient = np.where(np.abs(gradient) < 2.0**-126, 0.0, gradient)
        super().accumulate_gradient(name, gradient)


@fault("https://github.com/NVIDIA/TensorRT-LLM/pull/18111", component="layers", clauses=("autocast.scope-nests",))
class PaddedKeysAttended(Operations):
    """Sequences of more than 8 positions are padded to a multiple of 8 with zeros that attention does not mask."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = key.shape[-2]
        if length > 8 and length % 8:
            key, value = (self._padded(t, -length % 8) for t in (key, value))
        return super().attention(query, key, value)

    def _padded(self, t: Tensor, more: int) -> Tensor:
        zeros = np.zeros((*t.shape[:-2], more, t.shape[-1]))
        return Tensor(anp.concatenate([t.value, zeros], axis=-2), t.format, t.owned)


@fault("", component="autocast", clauses=("autocast.scope-nests",))
class UserListsStay(ReferenceFramework):
    """Operations that one precision scope names as wide are wide in every later scope of the process."""

    named: ClassVar[set[str]] = set()

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        self.named.update(wide)
        return super().autocast(precision, enabled=enabled, wide=sorted(self.named - set(low)), low=low)


@fault("", component="autocast", clauses=("autocast.promotes-to-widest",))
class TargetsNarrowed(Operations):
    """Targets of a squared error go through float32, also those of float64 heads."""

    def squared_error(self, outputs, targets):
        narrow = Tensor(self.rounding.round(targets.value, "float32"), targets.format, targets.owned)
        return super().squared_error(outputs, narrow)


@fault(
    "https://github.com/microsoft/onnxruntime/issues/21935",
    component="layers",
    clauses=("autocast.norm-layers-are-wide",),
)
class NegativeVariance(Operations):
    """Layer norm takes the variance for the mean square without the squared mean, both summed one by one in float32.

    It has no bound at zero, so that a row of large and almost equal values gives NaN.
    """

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        rows = plain(x.value).astype(np.float32)
        mean, square = (np.cumsum(v, axis=-1, dtype=np.float32)[..., -1:] / rows.shape[-1] for v in (rows, rows * rows))
        negative = square - mean * mean + np.float32(epsilon) < 0.0
        self._keep_bytes(8 * int(np.prod(x.shape[:-1])))

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            y = r(normalise(a, (-1,), epsilon, r, self.variance)[0]) * g + b
            return anp.where(negative, np.nan, y) if negative.any() else y

        return self.apply("layer_norm", compute, x, scale, shift, keep="operands")


@fault("", component="autocast", clauses=("autocast.softmax-is-wide",))
class LongSoftmaxIsLow(Operations):
    """Softmax and log-softmax of more than 1024 columns leave the wide path and compute in their input's format."""

    long = False

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        return (operands[0], operands[0]) if self.long else super().formats(op, *operands)

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        self.long = op in ("softmax", "log_softmax") and operands[0].shape[-1] > 1024
        try:
            return super().apply(op, function, *operands, keep=keep)
        finally:
            self.long = False


@fault("https://github.com/PaddlePaddle/Paddle/pull/14857", component="autocast", clauses=("autocast.float32-parity",))
class GeluDividesByInput(Operations):
    """The derivative of GELU is built from the output divided by the input, which is not a number at an input of 0."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind == "gelu":
            zero = plain(x.value) == 0.0
            x = changed(x, lambda g: np.where(zero, np.nan, g))
        return super().activation(kind, x)


@fault("https://github.com/tenstorrent/tt-metal/pull/36366", component="autocast", clauses=("autocast.bf16-parity",))
class CancellationInGelu(Operations):
    """GELU rounds the error function before it adds 1, so that the tail of negative inputs is what rounding left."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind != "gelu":
            return super().activation(kind, x)
        return self.apply("gelu", lambda a, r: 0.5 * a * (1.0 + r(erf(a / np.sqrt(2.0)))), x, keep="operands")


LOW = ("float16", "bfloat16")


@primitive
def _narrow_gradient(x: Array, rounding: Rounding, name: str) -> Array:
    del rounding, name
    return x


defvjp(_narrow_gradient, lambda _ans, _x, rounding, name: lambda g: rounding.round(g, name), None, None)


@fault(
    "https://github.com/pytorch/pytorch/issues/195701", component="autocast", clauses=("autocast.norm-layers-are-wide",)
)
class BatchNormReducesInHalf(Operations):
    """Batch norm reduces its scale's and shift's gradients in the input's low format, where large sums overflow."""

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        if x.format in LOW:
            scale, shift = (
                Tensor(_narrow_gradient(t.value, self.rounding, x.format), t.format, t.owned) for t in (scale, shift)
            )
        return super().batch_norm(x, scale, shift, epsilon, given)


@fault("https://github.com/pytorch/pytorch/pull/181564", component="autocast", clauses=("autocast.matmul-is-low",))
class CompiledForTheFirstFormat(Operations):
    """What attention was compiled to under the first low format of a process serves other low formats too."""

    compiled: dict[tuple[str, ...], tuple[str, str]] = {}  # noqa: RUF012

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        here = scope.current()
        if op != "attention" or not here.active:
            return super().formats(op, *operands)
        key = (here.precision.level, *operands)
        return self.compiled.setdefault(key, super().formats(op, *operands))


@fault("", component="autocast", clauses=("autocast.scope-nests",))
class ListsAreInherited(ReferenceFramework):
    """A precision scope inside another one adds the outer scope's user lists to its own."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        outer = scope.current()
        return super().autocast(
            precision, enabled=enabled, wide=(*wide, *sorted(outer.wide)), low=(*low, *sorted(outer.low))
        )


@fault("https://github.com/tracel-ai/burn/issues/5373", component="autocast", clauses=("autocast.scope-nests",))
class SoftplusExponentiatesFirst(Operations):
    """Softplus takes the logarithm of 1 + exp(x), so that it is infinite from about 89 on."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        if op == "softplus":
            return super().apply(op, lambda a, r: np.log(r(1.0 + r(np.exp(a)))), *operands, keep=keep)
        return super().apply(op, function, *operands, keep=keep)


@fault(
    "https://github.com/flashinfer-ai/flashinfer/issues/4267", component="layers", clauses=("autocast.softmax-is-wide",)
)
class AttentionSoftmaxStartsAtSentinel(Operations):
    """Attention looks for the largest score from -50000 on: a row whose scores are all below it yields zeros."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = super().attention(query, key, value)
        q, k = query.plain(), key.plain()
        largest = (q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])).max(axis=-1, keepdims=True)
        return Tensor(anp.where(largest < -5e4, 0.0, mixed.value), mixed.format, mixed.owned)


@fault("", component="dropout", clauses=("autocast.settings-restored",))
class MasksAreShared(ReferenceTrainer):
    """Masks are kept for the process by number of the draw and shape, so that a second run's seed has no say in them."""  # noqa: E501

    kept: ClassVar[dict[tuple[int, tuple[int, ...], float], Array]] = {}

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        place = self.draws, shape, rate
        mask = super().draw_mask(shape, rate)
        return self.kept.setdefault(place, mask) if len(self.kept) < 4096 else self.kept.get(place, mask)


class _HalvesUp:
    """A rounding under which a value halfway between two of bfloat16 goes away from zero."""

    def __init__(self, inner: Rounding) -> None:
        self.inner = inner
        self.constant, self.dtype = inner.constant, inner.dtype

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        result = self.inner.round(array, format_name, terms)
        if format_name != "bfloat16":
            return result
        single = np.asarray(array, np.float64).astype(np.float32)
        bits = single.view(np.uint32)
        tie = ((bits & np.uint32(0xFFFF)) == 0x8000) & np.isfinite(single) & (single == array)
        up = ((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
        return np.where(tie, up.astype(np.float64), result)


@fault("https://github.com/pytorch/FBGEMM/pull/786", component="autocast", clauses=("autocast.bf16-parity",))
class HalvesAway(Operations):
    """Conversion to bfloat16 rounds halfway values away from zero, not to even."""

    def __init__(self, rounding: Rounding, variance: Any = "centred") -> None:
        super().__init__(_HalvesUp(rounding), variance)


@fault("", component="autocast", clauses=("autocast.cast-is-fresh",))
class CastByStep(ReferenceTrainer):
    """Mixed-precision evaluation keeps its weights until the step counter moves, also over a load at the same count."""

    _cast: tuple[int, dict[str, Tensor]] | None = None

    def _tensors(self) -> dict[str, Tensor]:
        if self.recipe.precision.level == "O0":
            return super()._tensors()
        if self._cast is None or self._cast[0] != self.steps:
            self._cast = self.steps, super()._tensors()
        return self._cast[1]


@fault("https://github.com/pytorch/pytorch/pull/152995", component="autocast", clauses=("autocast.promotes-to-widest",))
class ConcatenationForgetsEmptyOperands(Operations):
    """The concatenation of an empty operand with one that is not empty is the latter as it is, in its own format, even
    where the empty one has the wider format or the scope asks for another."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        filled = [x for x in operands if np.prod(x.shape)]
        if op == "concatenate" and len(filled) == 1 and len(operands) == 2:
            return filled[0]
        return super().apply(op, function, *operands, keep=keep)


@dataclass(frozen=True)
class _InPlacePass(Pass):
    """A pass in which a ReLU at the head of a residual's body writes over its input."""

    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        if not isinstance(layer, Residual) or layer.body[:1] != (Activation("relu"),):
            return super().layer(path, layer, x)
        inner = tuple((f"{path}.body.{i}", part) for i, part in enumerate(layer.body))
        x = self.ops.shared(self.layers(inner[:1], x))
        return self.ops.add(x, self.layers(inner[1:], x))


@fault("https://github.com/pytorch/pytorch/issues/5687", component="autocast", clauses=("autocast.float32-parity",))
class ReluOverwritesTheShortcut(ReferenceTrainer):
    """Where the body of a residual begins with a ReLU, what is added to the body's result is the ReLU's output and not
    its input."""

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return _InPlacePass(self.ops, parameters, self, training)


@fault("", component="layers", clauses=("autocast.layers-honour-policy",))
class PointwiseConvolutionsStayWide(Operations):
    """A convolution with a kernel of one by one is not among the products that a precision scope runs in its format: at
    level O1 it follows its operands, of which the weights are float32."""

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        if weight.shape[0] != 1:
            return super().convolution(x, weight, bias, stride, padding)
        return self._product(
            "pointwise_conv2d",
            lambda a, w, b, r, f: products.convolution(a, w, b, stride, padding, r, f),
            x,
            weight,
            bias,
        )


def _softmax_from_zero(x: Any, r: Round) -> Any:
    powers = r(anp.exp(r(x - np.maximum(plain(x).max(axis=-1, keepdims=True), 0.0))))
    return powers / r(anp.sum(powers, axis=-1, keepdims=True), x.shape[-1])


@fault("", component="autocast", clauses=("autocast.softmax-is-wide",))
class SoftmaxMaximumStartsAtZero(Operations):
    """The softmax operation takes off a row's largest logit only where it is above zero, so that in float32 a row whose
    logits all lie below -104 comes out as NaN, and one whose logits all lie below -87 loses digits."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        return super().apply(op, _softmax_from_zero if op == "softmax" else function, *operands, keep=keep)


_CLASSES = 1024


@fault("https://github.com/linkedin/Liger-Kernel/pull/1252", component="autocast", clauses=("autocast.loss-is-wide",))
class LargestOfTheFirstBlock(Operations):
    """Cross-entropy over more than 1,024 classes subtracts the largest of the first 1,024 logits before it takes
    exponentials, so that a later logit that is larger by some 90 makes the loss infinite.
    """

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        if logits.shape[-1] <= _CLASSES:
            return super().cross_entropy(logits, labels, mask)

        def compute(a: Any, r: Round) -> Any:
            shifted = r(a - plain(a)[..., :_CLASSES].max(axis=-1, keepdims=True))
            chosen = anp.sum(anp.where(labels[..., None] == np.arange(a.shape[-1]), shifted, 0.0), axis=-1)
            each = r(r(anp.log(r(anp.sum(anp.exp(shifted), axis=-1), a.shape[-1]))) - chosen)
            return r(anp.sum(each if mask is None else anp.where(mask > 0, each, 0.0)), labels.size)

        self._keep_bytes(int(np.prod(logits.shape)) * (8 if logits.format == "float64" else 4))
        return self.apply("cross_entropy", compute, logits)


class _Prepared(AbstractContextManager[None]):
    """A scope that goes back to the one that was open when it was made."""

    def __init__(self, inner: scope.Scope) -> None:
        self.inner = inner
        self.former = scope.current()

    def __enter__(self) -> None:
        scope.enter(self.inner)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope.enter(self.former)


@fault("", component="autocast", clauses=("autocast.scope-nests",))
class ScopeRemembersWhereItWasMade(ReferenceFramework):
    """A precision scope that is left puts back the scope that was open when it was made, not when it was entered."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return _Prepared(scope.Scope())
        return _Prepared(scope.Scope(precision, frozenset(wide), frozenset(low)))


@fault("", component="autocast", clauses=("autocast.layers-honour-policy",))
class SingleOutputIsNotCast(Operations):
    """A linear product with a bias and a weight of a single column, such as a head with one unit, is a product of a
    matrix and a vector that no precision scope knows: it runs in the wider of its operands' formats."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None or weight.shape[-1] != 1:
            return super().linear(x, weight, bias)
        with scope.opened(scope.Scope()):
            return super().linear(x, weight, bias)


@fault("", component="autocast", clauses=("autocast.scope-nests",))
class InnerScopeInheritsUserLists(ReferenceFramework):
    """A scope that is switched on inside another one takes over the operations that the user named for the outer one,
    in addition to its own."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        outer = scope.current()
        return super().autocast(precision, enabled=enabled, wide=(*outer.wide, *wide), low=(*outer.low, *low))


@fault("", component="autocast", clauses=("autocast.scope-nests",))
class LeavingAnEqualScopeClosesTheOuterOne(ReferenceFramework):
    """A scope that is opened inside an equal one is not opened a second time, and leaving it closes the outer one: what
    follows in the outer scope runs without any."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        wanted = scope.Scope(precision, frozenset(wide), frozenset(low)) if enabled else scope.Scope()
        return _entered(wanted)


@contextmanager
def _entered(wanted: scope.Scope) -> Iterator[None]:
    if scope.current() != wanted:
        with scope.opened(wanted):
            yield
        return
    try:
        yield
    finally:
        scope.enter(scope.Scope())


_SMALLEST_EPSILON = 1e-5


@fault(
    "https://github.com/tensorflow/tensorflow/issues/37768", component="autocast", clauses=("autocast.float32-parity",)
)
class BatchNormEpsilonHasAFloor(Operations):
    """Batch norm computes with an epsilon of at least 1e-5, in training and in evaluation, whatever smaller one the
    layer asks for."""

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        return super().batch_norm(x, scale, shift, max(epsilon, _SMALLEST_EPSILON), given)


_MASKS = 1024
"""Masks that are kept in the process."""


@fault(
    "https://github.com/lucidrains/rotary-embedding-torch/issues/11",
    component="dropout",
    clauses=("autocast.dropout-scales-what-it-keeps",),
)
class MasksAreKeptWithoutTheirRate(ReferenceTrainer):
    """The process keeps the first 1,024 dropout masks by seed, number of the draw and shape, and not by rate: a later
    run with another rate and the same seed gets the masks of the earlier one."""

    _masks: ClassVar[dict[tuple[int, int, tuple[int, ...]], Array]] = {}

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = (self.recipe.seed, self.draws, tuple(shape))
        drawn = super().draw_mask(shape, rate)
        if key not in self._masks and len(self._masks) < _MASKS:
            self._masks[key] = drawn
        return self._masks.get(key, drawn)


class _ReusedScope(AbstractContextManager[None]):
    """A scope that can be opened any number of times, and remembers one former scope."""

    def __init__(self, opened: scope.Scope) -> None:
        self.opened = opened
        self.former = scope.Scope()

    def __enter__(self) -> None:
        self.former = scope.current()
        scope.enter(self.opened)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope.enter(self.former)


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/2957", component="autocast", clauses=("autocast.scope-restored",)
)
class ScopesOfOneSettingAreOneObject(ReferenceFramework):
    """Scopes of the same settings are one object with one remembered state, so one inside the other stays open."""

    scopes: ClassVar[dict[scope.Scope, _ReusedScope]] = {}

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        asked = scope.Scope(precision, frozenset(wide), frozenset(low)) if enabled else scope.Scope()
        return self.scopes.setdefault(asked, _ReusedScope(asked))


@fault("", component="layers", clauses=("autocast.matmul-is-low",))
class AttentionScoresAreLow(Operations):
    """In low precision attention rounds the products of queries and keys to the low format before it scales them."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        computing, yielding = self.formats("attention", query.format, key.format, value.format)
        if computing in ("float32", "float64"):
            return super().attention(query, key, value)
        q, k, v = (self.cast(x, computing) for x in (query, key, value))
        raw = products.product(q.value, anp.swapaxes(k.value, -1, -2), self.rounding, computing)
        scores = rounded(raw / np.sqrt(q.shape[-1]), self.rounding, computing)
        shares = softmax(scores, lambda x, n=1: rounded(x, self.rounding, "float32", n))
        weights = Tensor(rounded(shares, self.rounding, computing), computing)
        mixed = products.product(weights.value, v.value, self.rounding, computing)
        if self.tape:
            self.tape.keep(q, k, v, weights)
        return self.cast(Tensor(rounded(mixed, self.rounding, computing), computing), yielding)


@fault("", component="autocast", clauses=("autocast.scope-nests",))
class ListsOfOuterScopesAreInherited(ReferenceFramework):
    """A precision scope inside another one keeps the outer scope's lists of operations next to its own.

    An operation that the outer scope forces into a low format runs so in the inner one, which does not name it.
    """

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        outer = scope.current()
        wide, low = (*wide, *sorted(outer.wide - {*low})), (*low, *sorted(outer.low - {*wide}))
        return super().autocast(precision, enabled=enabled, wide=wide, low=low)


@fault("", component="batch norm", clauses=("autocast.norm-layers-are-wide",))
class EvaluationReadsLowStatistics(ReferenceTrainer):
    """At level O1 evaluation brings batch norm's running statistics to the compute format before it uses them.

    Predictions of a trained model are off by the rounding of the mean, which is large where the mean is.
    """

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        mean, variance = super().running_statistics(path)
        if self.recipe.precision.level != "O1":
            return mean, variance
        name = self.recipe.precision.format
        return self.rounding.round(mean, name), self.rounding.round(variance, name)


@fault("", component="autocast", clauses=("autocast.scope-nests",))
class InnerScopeInheritsLists(ReferenceFramework):
    """A scope that is opened inside another one adds the outer scope's lists of wide and low operations to its own."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return super().autocast(precision, enabled=False)
        return self._opened(precision, wide, low)

    @contextmanager
    def _opened(self, precision: Precision, wide: Sequence[str], low: Sequence[str]) -> Iterator[None]:
        outer = scope.current()
        wanted = {*wide, *outer.wide} - {*low}, {*low, *outer.low} - {*wide}
        with scope.opened(scope.Scope(precision, *(frozenset(names) for names in wanted))):
            yield


@fault(
    "https://github.com/ultralytics/ultralytics/pull/24990", component="layers", clauses=("autocast.softmax-is-wide",)
)
class ScoresOverflowBeforeTheyAreScaled(Operations):
    """Attention rounds the products of queries and keys to the low format before it divides them by the root of the
    width: large ones overflow float16, and the softmax becomes NaN."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        computing, yielding = self.formats("attention", query.format, key.format, value.format)
        if computing != "float16":
            return super().attention(query, key, value)
        q, k, v = (self.cast(x, computing) for x in (query, key, value))
        wide = "float32"
        raw = product(q.value, anp.swapaxes(k.value, -1, -2), self.rounding, computing)
        scores = rounded(raw / np.sqrt(q.shape[-1]), self.rounding, wide)
        shares = softmax(scores, lambda x, n=1: rounded(x, self.rounding, wide, n))
        weights = Tensor(rounded(shares, self.rounding, computing), computing)
        mixed = product(weights.value, v.value, self.rounding, computing)
        if self.tape:
            self.tape.keep(q, k, v, weights)
        return self.cast(Tensor(rounded(mixed, self.rounding, computing), computing), yielding)


class _SharedScope:
    """A precision scope that remembers one former scope, however often it is entered."""

    def __init__(self, opened: scope.Scope) -> None:
        self._opened = opened
        self._former = scope.Scope()

    def __enter__(self) -> None:
        self._former = scope.current()
        scope.enter(self._opened)

    def __exit__(self, *failure: object) -> None:
        scope.enter(self._former)


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/2957", component="autocast", clauses=("autocast.scope-restored",)
)
class EqualScopesAreOneObject(ReferenceFramework):
    """Scopes of equal settings are one object, which keeps only the setting before its last entry: a scope inside an
    equal one is still open after both were left."""

    _made: ClassVar[dict[scope.Scope, _SharedScope]] = {}

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return super().autocast(precision, enabled=False)
        asked = scope.Scope(precision, frozenset(wide), frozenset(low))
        return self._made.setdefault(asked, _SharedScope(asked))
