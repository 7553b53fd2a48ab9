"""`Operations`, the layers' operations on tensors, and the bytes that they save for backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from frameworks.reference.core import scope
from frameworks.reference.core.primitives import affine, convolution, erf, largest, logistic, product, user_square
from frameworks.reference.core.rounding import Rounding
from frameworks.reference.core.tape import Tensor, cast_tensor, plain, round_values

Variance = Literal["centred", "difference"]

Round = Callable[..., Any]
"""Rounds an intermediate value to the computing format; the second argument is the number of terms in its sum."""


class Operations:
    """The operations of layers and losses, rounded by one `Rounding`. Faults override `formats` and `cast`.

    Attributes:
        rounding: rounds every result to its format.
        variance: how normalisation computes the variance, as in `Conventions`.
        tape: counts the bytes saved for backward; None counts nothing.
    """

    def __init__(self, rounding: Rounding, variance: Variance = "centred") -> None:
        self.rounding = rounding
        self.variance = variance
        self.tape: SavedForBackward | None = None

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        """The computing format and the result format of `op` in the open scope."""
        return scope.current().formats(op, operands)

    def cast(self, x: Tensor, target: str) -> Tensor:
        """x in another format."""
        return cast_tensor(x, target, self.rounding)

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        """Runs one operation: casts its floating operands, computes on the carriers, and rounds the result once.

        `function` takes the carriers and a `Round` for intermediate values. `keep` names the values that are saved for
        backward: "operands", "result", or "" for none.
        """
        computing, yielding = self.formats(op, *(x.format for x in operands if x.floating))
        inside = [self.cast(x, computing) if x.floating else x for x in operands]
        value = function(*(x.value for x in inside), lambda v, n=1: round_values(v, self.rounding, computing, n))
        value = round_values(value, self.rounding, computing)
        if yielding != computing:
            return self.cast(Tensor(value, computing), yielding)
        result = Tensor(value, yielding)
        if self.tape and keep:
            self.tape.keep(*(inside if keep == "operands" else [result]))
        return result

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        computing, yielding = self.formats(op, *(x.format for x in operands))
        inside = [self.cast(x, computing) for x in operands]
        if self.tape:
            self.tape.keep(*inside[:2])
        value = function(*(x.value for x in inside), self.rounding, computing)
        return self.cast(Tensor(round_values(value, self.rounding, computing), computing), yielding)

    def _keep_bytes(self, count: int) -> None:
        if self.tape:
            self.tape.keep_bytes(count)

    def matmul(self, a: Tensor, b: Tensor, op: str = "matmul") -> Tensor:
        """a (..., M, K) · b (..., K, N)."""
        return self._product(op, product, a, b)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., I) · weight (I, O) + bias (O)."""
        if bias is None:
            return self._product("linear", product, x, weight)
        return self._product("linear", affine, x, weight, bias)

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        """Cross-correlation of (N, H, W, C) with (size, size, C, F)."""
        return self._product(
            "conv2d", lambda a, w, b, r, f: convolution(a, w, b, stride, padding, r, f), x, weight, bias
        )

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Scaled dot-product attention of (..., T, D); scores and softmax in float32 or wider."""
        computing, yielding = self.formats("attention", query.format, key.format, value.format)
        q, k, v = (self.cast(x, computing) for x in (query, key, value))
        wide = computing if computing in ("float32", "float64") else "float32"
        scale = 1.0 / np.sqrt(q.shape[-1])
        turned = anp.swapaxes(k.value, -1, -2)
        scores = round_values(product(q.value, turned, self.rounding, wide) * scale, self.rounding, wide)
        shares = softmax(scores, lambda x, n=1: round_values(x, self.rounding, wide, n))
        weights = Tensor(round_values(shares, self.rounding, computing), computing)
        mixed = product(weights.value, v.value, self.rounding, computing)
        if self.tape:
            self.tape.keep(q, k, v, weights)
        return self.cast(Tensor(round_values(mixed, self.rounding, computing), computing), yielding)

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        """Normalises over the last axis with the biased variance; saves x and two float32 statistics of each row."""
        self._keep_bytes(8 * math.prod(x.shape[:-1]))

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            return r(normalise(a, (-1,), epsilon, r, self.variance)[0]) * g + b

        return self.apply("layer_norm", compute, x, scale, shift, keep="operands")

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, running_statistics: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        """Normalises over every axis but the last, with the batch's statistics or `running_statistics`.

        Returns the result, the mean and the biased variance.
        """
        self._keep_bytes(8 * x.shape[-1])
        axes = tuple(range(len(x.shape) - 1))
        statistics: list[Array] = []

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            if running_statistics is None:
                y, mean, variance = normalise(a, axes, epsilon, r, self.variance)
                statistics.extend(plain(s).reshape(-1) for s in (mean, variance))
            else:
                y = (a - running_statistics[0]) * r(1.0 / anp.sqrt(running_statistics[1] + epsilon))
                statistics.extend(running_statistics)
            return r(y) * g + b

        result = self.apply("batch_norm", compute, x, scale, shift, keep="operands")
        return result, statistics[0], statistics[1]

    def activation(self, kind: str, x: Tensor) -> Tensor:
        """relu, gelu (by the error function), tanh or sigmoid."""
        function = UNARY[kind]
        return self.apply(kind, lambda a, _: function(a), x, keep="operands" if kind == "gelu" else "result")

    def user_function(self, x: Tensor) -> Tensor:
        """x·x with the backward pass of `UserFunction`; saves x for backward."""
        return self.apply("user_function", lambda a, _: user_square(a), x, keep="operands")

    def fan_out(self, x: Tensor) -> Tensor:
        """x, to be used by several operations; the gradients of these uses are added without rounding."""
        return x

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b in the wider format."""
        return self.apply("add", lambda x, y, _: x + y, a, b)

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        """x / (1 - rate) where `mask` is True, else 0; saves one byte for each value."""
        self._keep_bytes(int(mask.size))
        return self.apply("dropout", lambda a, _: anp.where(mask, a / (1.0 - rate), 0.0), x)

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        """Rows of `table` (entries, width) at `ids`."""
        return self.apply("embedding", lambda i, t, _: t[i], ids, table)

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        """Maximum over size × size squares; saves one byte for each result."""
        self._keep_bytes(math.prod(x.shape) // size**2)
        return self.apply("max_pool", lambda a, _: largest(a, size), x)

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        """Sum over items of -log softmax(logits)[label]; saves the probabilities."""

        def compute(a: Any, r: Round) -> Any:
            shifted = r(a - plain(a).max(axis=-1, keepdims=True))
            chosen = anp.sum(anp.where(labels[..., None] == np.arange(a.shape[-1]), shifted, 0.0), axis=-1)
            losses = r(r(anp.log(r(anp.sum(anp.exp(shifted), axis=-1), a.shape[-1]))) - chosen)
            return r(anp.sum(losses if mask is None else anp.where(mask > 0, losses, 0.0)), labels.size)

        self._keep_bytes(math.prod(logits.shape) * (8 if logits.format == "float64" else 4))
        return self.apply("cross_entropy", compute, logits)

    def squared_error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum over items of the mean over units of the squared difference; saves the difference."""

        def compute(a: Any, b: Any, r: Round) -> Any:
            difference = r(a - b)
            return r(anp.sum(r(anp.sum(difference * difference, axis=-1) / a.shape[-1], a.shape[-1])), a.shape[0])

        self._keep_bytes(math.prod(outputs.shape) * (8 if "float64" in (outputs.format, targets.format) else 4))
        return self.apply("squared_error", compute, outputs, targets)


def normalise(
    x: Any, axes: tuple[int, ...], epsilon: float, r: Round, how: Variance = "centred", measured: Any = None
) -> tuple[Any, Any, Any]:
    """x with mean 0 and variance 1 over `axes`, the mean and the biased variance.

    Args:
        how: computation of the variance, as in `Conventions`.
        measured: a second reference to x, from which mean and variance are computed so that their gradient is separate
            from that of x; None to compute them from x itself.
    """
    terms = math.prod(x.shape[axis] for axis in axes)
    measured = x if measured is None else measured
    mean = r(anp.mean(measured, axis=axes, keepdims=True), terms)
    centred = r(x - mean)
    if how == "difference":
        squares = r(anp.mean(r(measured * measured), axis=axes, keepdims=True), terms)
        variance = anp.maximum(0.0, r(squares - r(mean * mean)))
    else:
        deviations = centred if measured is x else r(measured - mean)
        variance = r(anp.mean(deviations * deviations, axis=axes, keepdims=True), terms)
    return centred * r(1.0 / anp.sqrt(variance + epsilon)), mean, variance


def softmax(x: Any, r: Round) -> Any:
    """Softmax over the last axis."""
    powers = r(anp.exp(r(x - plain(x).max(axis=-1, keepdims=True))))
    return powers / r(anp.sum(powers, axis=-1, keepdims=True), x.shape[-1])


def _relu(x: Any) -> Any:
    return anp.where(plain(x) <= 0.0, 0.0, x)


UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": _relu,
    "gelu": lambda x: 0.5 * x * (1.0 + erf(x / np.sqrt(2.0))),
    "tanh": anp.tanh,
    "sigmoid": logistic,
    "erf": erf,
}


class SavedForBackward:
    """Counts the bytes that a forward pass saves for backward; an array that two operations save counts once."""

    def __init__(self) -> None:
        self._saved: dict[tuple[int, str], tuple[Array, Tensor]] = {}
        self._extra = 0

    def keep(self, *tensors: Tensor) -> None:
        """Counts these tensors as saved; parameters, inputs and their casts are not counted."""
        for t in tensors:
            if t.owned:
                values = _find_base(t.plain())
                self._saved[id(values), t.format] = values, t

    def keep_bytes(self, count: int) -> None:
        """Counts bytes of saved masks, indices or statistics, which are not tensors."""
        self._extra += count

    @property
    def bytes(self) -> int:
        """Total number of saved bytes."""
        return self._extra + sum(t.bytes for _, t in self._saved.values())


def _find_base(array: Array) -> Array:
    """The array that owns the memory of this view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
