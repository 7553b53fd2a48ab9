"""Runs of the oracle for the laws: what they note, and what members of an ensemble may do in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from frameworks.reference.arithmetic import UNARY, Operations, Round, normalise
from frameworks.reference.tensor import Tensor, plain
from frameworks.reference.trainer import ReferenceTrainer


class NotesDrops(ReferenceTrainer):
    """The oracle's run, which notes how many micro-batches were dropped so far."""

    dropped = 0

    def take_micro_batch(self, gradients: dict[str, Array]) -> None:
        before = self.window.dropped
        super().take_micro_batch(gradients)
        self.dropped += self.window.dropped - before

    def unscale_gradients(self) -> None:
        """Nothing for the caller to do where gradients were unscaled as they were taken in."""
        alone = self.conventions.nonfinite_micro_batch == "drop-micro-batch"
        if not (alone and self.window.unscaled):
            super().unscale_gradients()


class NormsInParts(Operations):
    """Normalisation whose gradient is the sum of two parts, each of which is rounded to the operand's format.

    The operand is cast once for its mean and variance, and once to be normalised. In low formats the gradient may be
    far smaller than its two parts, so that their roundings decide about all of its digits.
    """

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        def compute(a: Any, measured: Any, g: Any, b: Any, r: Round) -> Any:
            return r(normalise(a, (-1,), epsilon, r, self.variance, measured)[0]) * g + b

        return self.apply("layer_norm", compute, x, x, scale, shift)

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        if given is not None:
            return super().batch_norm(x, scale, shift, epsilon, given)
        axes = tuple(range(len(x.shape) - 1))
        statistics: list[Array] = []

        def compute(a: Any, measured: Any, g: Any, b: Any, r: Round) -> Any:
            y, mean, variance = normalise(a, axes, epsilon, r, self.variance, measured)
            statistics.extend(plain(s).reshape(-1) for s in (mean, variance))
            return r(y) * g + b

        return self.apply("batch_norm", compute, x, x, scale, shift), statistics[0], statistics[1]


_SLOPES: dict[str, Callable[[Array], Array]] = {"tanh": lambda y: 1.0 - y * y, "sigmoid": lambda y: y * (1.0 - y)}


class PartsAndTiles(NormsInParts):
    """And attention whose backward pass takes the sum over a row of shares from the rounded output.

    The slopes of tanh and of the sigmoid are taken from their rounded outputs too.
    Source: Dao et al., "FlashAttention", NeurIPS 2022, algorithm 4: dS = P ∘ (dP − rowsum(dO ∘ O)).
    """

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = super().attention(query, key, value)
        computing, _ = self.formats("attention", query.format, key.format, value.format)
        q, k, v = (self.cast(x, computing).value for x in (query, key, value))
        scores = anp.matmul(q, anp.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])
        powers = np.exp(plain(scores) - plain(scores).max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        off = mixed.plain() - shares @ plain(v)
        if not (np.isfinite(off).all() and np.isfinite(plain(scores)).all()):
            return mixed
        nothing = anp.sum(shares * (scores - plain(scores)), axis=-1, keepdims=True)
        return Tensor(mixed.value - off * nothing, mixed.format)

    def activation(self, kind: str, x: Tensor) -> Tensor:
        slope = _SLOPES.get(kind)
        if slope is None or not np.isfinite(x.plain()).all():
            return super().activation(kind, x)

        def compute(a: Any, r: Round) -> Any:
            y = plain(r(UNARY[kind](plain(a))))
            return y + slope(y) * (a - plain(a))

        return self.apply(kind, compute, x, keep="result")
