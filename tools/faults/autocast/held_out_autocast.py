"""Held-out faults of autocast: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import FORMATS
from fixtures.recipe import Precision
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import products, scope
from frameworks.reference.core.arithmetic import Operations, Round
from frameworks.reference.core.tensor import Tensor, plain
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/ROCm/rocm-libraries/pull/11325", "autocast.backward-in-forward-precision")
class SubnormalsLostInCast(Operations):
    """A cast to float16 makes zero of every value whose rounded one is subnormal."""

    def cast(self, x: Tensor, target: str) -> Tensor:
        y = super().cast(x, target)
        if target != "float16" or x.format == target:
            return y
        tiny = np.abs(y.plain()) < 2.0 ** FORMATS["float16"].smallest_exponent
        return Tensor(anp.where(tiny, 0.0, y.value), y.format, y.owned)


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


@fault("https://github.com/NVIDIA/TransformerEngine/pull/2957", "autocast.scope-restored")
class ScopesOfOneSettingAreOneObject(ReferenceFramework):
    """Scopes of the same settings are one object with one remembered state, so one inside the other stays open."""

    scopes: ClassVar[dict[scope.Scope, _ReusedScope]] = {}

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        asked = scope.Scope(precision, frozenset(wide), frozenset(low)) if enabled else scope.Scope()
        return self.scopes.setdefault(asked, _ReusedScope(asked))


@fault("", "autocast.scope-nests")
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


@fault("", "autocast.dropout-scales-what-it-keeps")
class MomentIsSpent(ReferenceTrainer):
    """What a forward pass found is kept for one replay: of two losses' backward passes the second draws new masks."""

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


@fault("", "autocast.scope-nests")
class SoftmaxMaximumStartsAtZero(Operations):
    """The softmax operation takes off a row's largest logit only where it is above zero, so that in float32 a row whose
    logits all lie below -104 comes out as NaN, and one whose logits all lie below -87 loses digits."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        return super().apply(op, _softmax_from_zero if op == "softmax" else function, *operands, keep=keep)
