"""Faults in what is computed, and in which precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import Precision
from frameworks.reference.arithmetic import Operations, normalise
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.tensor import Tensor, plain
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/tracel-ai/burn/issues/5373", clause="autocast.exp-pow-are-wide", kind="real")
class SoftplusExponentiatesFirst(Operations):
    """Softplus takes the logarithm of 1 + exp(x), so that it is infinite from about 89 on."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        if op == "softplus":
            return super().apply(op, lambda a, r: np.log(r(1.0 + r(np.exp(a)))), *operands, keep=keep)
        return super().apply(op, function, *operands, keep=keep)


@fault("https://github.com/apple/coremltools/pull/2822", clause="autocast.norm-layers-are-wide", kind="real")
class NormRescalesBeforeEpsilon(Operations):
    """Layer norm divides a row by its largest magnitude first and adds epsilon afterwards, which makes epsilon larger.

    A row of zeros becomes NaN.
    """

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        largest = np.abs(x.plain()).max(axis=-1, keepdims=True)
        return super().layer_norm(Tensor(x.value / largest, x.format, x.owned), scale, shift, epsilon)


@fault("https://github.com/flagos-ai/FlagGems/issues/5392", clause="autocast.float32-parity", kind="real")
class NormBackwardTakesSamplesForRows(Operations):
    """The backward pass of layer norm takes each sample of a batch of sequences for one row; the forward is right."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        right = super().layer_norm(x, scale, shift, epsilon)
        if len(x.shape) < 3:
            return right
        axes = tuple(range(1, len(x.shape)))

        def compute(a: Any, g: Any, b: Any, r: Any) -> Any:
            return r(normalise(a, axes, epsilon, r, self.variance)[0]) * g + b

        tape, self.tape = self.tape, None
        wrong = self.apply("layer_norm", compute, x, scale, shift)
        self.tape = tape
        return Tensor(plain(right.value) + (wrong.value - plain(wrong.value)), right.format, right.owned)


@fault("https://github.com/flashinfer-ai/flashinfer/issues/4267", clause="autocast.softmax-is-wide", kind="real")
class AttentionSoftmaxStartsAtSentinel(Operations):
    """Attention looks for the largest score from -50000 on: a row whose scores are all below it yields zeros."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = super().attention(query, key, value)
        q, k = query.plain(), key.plain()
        largest = (q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])).max(axis=-1, keepdims=True)
        return Tensor(anp.where(largest < -5e4, 0.0, mixed.value), mixed.format, mixed.owned)


@fault("https://github.com/keras-team/keras/issues/23704", clause="autocast.promotes-to-widest", kind="real")
class DoubleSumsComeInSingle(Operations):
    """The sum, difference or product of two float64 operands comes in float32."""

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        if op in ("add", "subtract", "multiply") and set(operands) == {"float64"}:
            return "float64", "float32"
        return super().formats(op, *operands)


@fault("", clause="autocast.user-lists", kind="invented")
class WideListIsKept(ReferenceFramework):
    """Operations that a scope names as wide stay wide in every later scope of the process that brings a list."""

    named: ClassVar[set[str]] = set()

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        kept = self.named
        if wide or low:
            kept |= set(wide)
            wide = tuple(kept)
        return super().autocast(precision, enabled=enabled, wide=wide, low=low)


@fault("https://github.com/Dao-AILab/flash-attention/issues/314", clause="accumulation.fresh-dropout", kind="real")
class SequenceDropoutStandsStill(ReferenceTrainer):
    """Dropout on sequences reads the random stream without moving it, so that the next dropout draws the same mask."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        mask = super().draw_mask(shape, rate)
        if len(shape) == 3:
            self.draws -= 1
        return mask


@fault("", clause="autocast.settings-restored", kind="invented")
class MasksAreShared(ReferenceTrainer):
    """Masks are kept for the process by number of the draw and shape, so that a second run's seed has no say in them."""  # noqa: E501

    kept: ClassVar[dict[tuple[int, tuple[int, ...], float], Array]] = {}

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        place = self.draws, shape, rate
        mask = super().draw_mask(shape, rate)
        return self.kept.setdefault(place, mask) if len(self.kept) < 4096 else self.kept.get(place, mask)


@fault("", clause="recompute.with-accumulation", kind="invented")
class ReplayBeginsWithTheWindow(ReferenceTrainer):
    """Later micro-batches of a window replay the masks of its first one; the forward passes draw their own."""

    def _backward(self, batch: Any, items: int) -> Any:
        self._begun = self.draws
        if not self.window.micro_batches:
            self.window.first_draw = self.draws  # type: ignore[attr-defined]
        return super()._backward(batch, items)

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        first = getattr(self.window, "first_draw", self._begun)
        return super().replay_random(draws - self._begun + first)


@fault("", clause="recompute.replays-dropout", kind="invented")
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


@fault("", clause="cost.bytes-repeat", kind="invented")
class AccumulatorCountsAsSaved(ReferenceTrainer):
    """Inside a window the bytes held for backward include the accumulator's."""

    def saved_bytes(self, batch: Any) -> int:
        return super().saved_bytes(batch) + sum(held.nbytes for held in self.accumulator().values())
