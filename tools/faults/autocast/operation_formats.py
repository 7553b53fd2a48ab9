"""Faults of the format that each operation runs in: low where it should be wide, wide where it should be low."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from fixtures.arrays import Array
from fixtures.layers import Dense, Layer
from fixtures.recipe import Precision
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.network import Pass
from frameworks.reference.core.scope import LOW, Scope
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

# what runs low that should run wide


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
    """Softmax and its kin are computed in the low format."""

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


# what runs wide, or nowhere, that should run low


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
        with scope.opened(Scope()):
            return super().layer(path, layer, x)


@fault("https://github.com/tensorflow/tensorflow/issues/53470", "autocast.layers-honour-policy")
class DenseLayerReadsAnotherPolicy(ReferenceTrainer):
    """The product is on the low list, but one layer type reads another policy and runs it in float32."""

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return _DeafPass(self.ops, parameters, self, training)


def half(format_name: str) -> bool:
    """Whether the format is a 16-bit one."""
    return format_name in ("float16", "bfloat16")


@fault("https://github.com/tensorflow/tensorflow/issues/59678", "autocast.layers-honour-policy", raises=True)
class DropoutFailsInHalf(Operations):
    """Dropout of low values fails."""

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        if half(x.format):
            raise TypeError(f"dropout has no kernel for {x.format}")
        return super().dropout(x, mask, rate)


@fault("https://github.com/PaddlePaddle/Paddle/pull/60052", "autocast.user-lists")
class UserListIsIntersected(ReferenceFramework):
    """Names on the user's lists count only where they are on the built-in ones."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        return super().autocast(precision, enabled=enabled, wide=tuple(set(wide) - LOW), low=tuple(set(low) & LOW))
