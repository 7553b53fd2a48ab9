"""Faults of precision formats, dropout, batch norm and recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.layers import Dropout, Layer
from fixtures.model import Batch
from fixtures.recipe import Precision
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.reference import products, scope
from frameworks.reference.arithmetic import Operations, softmax
from frameworks.reference.decisions import Arrays
from frameworks.reference.forward import Moment
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.network import Pass
from frameworks.reference.tensor import Tensor, plain, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

LOW = ("float16", "bfloat16")


class _Undropped(Pass):
    """A forward pass that leaves dropout out."""

    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        return x if isinstance(layer, Dropout) else super().layer(path, layer, x)


@fault("https://github.com/NVIDIA/Megatron-LM/pull/411", clause="accumulation.evaluation-changes-nothing", kind="real")
class DropoutOffForGood(ReferenceTrainer):
    """An evaluation sets the rate of dropout to zero, and nothing sets it back when training goes on."""

    _evaluated_once = False

    def predict(self, inputs: Array) -> Arrays:
        self._evaluated_once = True
        return super().predict(inputs)

    def _pass(self, parameters: Any, training: bool) -> Pass:
        kind = _Undropped if self._evaluated_once else Pass
        return kind(self.ops, parameters, self, training)


@fault("https://github.com/FluxML/Flux.jl/issues/1992", clause="autocast.evaluation-parity", kind="real")
class VarianceOfOneValue(ReferenceTrainer):
    """A batch with a single value a channel makes batch norm's running variance NaN: it is corrected by n / (n - 1)
    without a look at n."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        known = variance if count > 1 else np.full_like(variance, np.nan)
        super().update_running_statistics(path, mean, known, count, momentum)


@fault("https://github.com/deepspeedai/DeepSpeed/issues/581", clause="autocast.norm-layers-are-wide", kind="real")
class EpsilonInHalf(Operations):
    """Layer norm of float16 values adds its epsilon in float16, where 1e-12 is zero: a constant row becomes NaN."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        return super().layer_norm(x, scale, shift, float(np.float16(epsilon)) if x.format == "float16" else epsilon)


@fault("https://github.com/ultralytics/ultralytics/pull/24990", clause="autocast.fp16-parity", kind="real")
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


@fault("https://github.com/ROCm/rocm-libraries/pull/11325", clause="autocast.matmul-is-low", kind="real")
class SubnormalsLostInCast(Operations):
    """A cast to float16 makes zero of every value whose rounded one is subnormal."""

    def cast(self, x: Tensor, target: str) -> Tensor:
        y = super().cast(x, target)
        if target != "float16" or x.format == target:
            return y
        tiny = np.abs(y.plain()) < 2.0 ** FORMATS["float16"].smallest_exponent
        return Tensor(anp.where(tiny, 0.0, y.value), y.format, y.owned)


@fault("https://github.com/pytorch/pytorch/issues/37874", clause="recompute.failure-leaves-no-trace", kind="real")
class WedgedAfterFailure(ReferenceFramework):
    """The mark that a recomputation is under way is not taken back when it fails, and every later one in the process is
    refused."""

    under_way = False

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        kind = type(self)
        if kind.under_way:
            raise RuntimeError("a recomputation is under way already")
        kind.under_way = True
        result = super().recompute(case, x, w, variant)
        kind.under_way = False
        return result


@fault("", clause="recompute.with-accumulation", kind="invented")
class ReplayOfFirstMicroBatch(ReferenceTrainer):
    """The state of the random stream is noted once a window: in later micro-batches the recomputed forward pass draws
    the masks of the first one."""

    _first: int | None = None
    _begun = 0

    def accumulate(self, batch: Batch, items: int) -> float:
        self._begun = self.draws
        if self._first is None or not self.window.micro_batches:
            self._first = self.draws
        return super().accumulate(batch, items)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        first = self._begun if self._first is None else self._first
        return super().recompute_segment(replace(moment, draws=moment.draws - self._begun + first))


_masks: dict[tuple[int, int, tuple[int, ...]], Array] = {}


@fault("", clause="autocast.dropout-scales-what-it-keeps", kind="invented")
class MasksOfAnotherRate(ReferenceTrainer):
    """Masks are cached over the process by seed, draw and shape: a later run with another rate drops by the earlier
    run's."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = (self.recipe.seed, self.draws, shape)
        mask = super().draw_mask(shape, rate)
        if len(_masks) > 256:
            _masks.clear()
        return _masks.setdefault(key, mask)


@fault("", clause="autocast.scope-nests", kind="invented")
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


@fault("", clause="autocast.matmul-is-low", kind="invented")
class OddInnerSize(Operations):
    """A low-precision linear layer takes its terms in pairs: of an odd number of inputs above one the last is left
    out."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        given = [t.format for t in (x, weight, bias) if t is not None]
        if self.formats("linear", *given)[0] in LOW and x.shape[-1] % 2 and x.shape[-1] > 1:
            x = Tensor(x.value[..., :-1], x.format, x.owned)
            weight = Tensor(weight.value[:-1], weight.format, weight.owned)
        return super().linear(x, weight, bias)
