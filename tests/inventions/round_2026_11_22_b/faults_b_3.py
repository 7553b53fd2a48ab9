"""Faults of layers and of the formats that they run in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.recipe import Precision
from frameworks.reference import scope
from frameworks.reference.arithmetic import Operations, Round, normalise
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.rounding import Rounding
from frameworks.reference.tensor import Tensor, plain
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@primitive
def _rows(table: Array, ids: Array, rounding: Rounding, low: str) -> Array:
    del rounding, low
    return table[ids]


def _rows_back(_ans: Array, table: Array, ids: Array, rounding: Rounding, low: str) -> Any:
    def pullback(gradient: Array) -> Array:
        total, seen = np.zeros_like(table), set()
        for place, row in zip(ids.reshape(-1), gradient.reshape(-1, table.shape[-1]), strict=True):
            total[place] = rounding.round(total[place] + row, low) if place in seen else row
            seen.add(place)
        return total

    return pullback


defvjp(_rows, _rows_back, None, None, None)


@fault("https://github.com/tenstorrent/tt-metal/pull/53386", clause="accumulation.repeated-rows", kind="real")
class RepeatedRowsInLow(Operations):
    """In mixed precision, the gradients of a row that a batch uses more than once are added in the low format."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        now = scope.current()
        if not now.active:
            return super().embedding(ids, table)
        low = now.precision.format
        return self.apply("embedding", lambda i, t, _: _rows(t, i, self.rounding, low), ids, table)


@fault("https://github.com/BobMcDear/attorch/issues/18", clause="autocast.float32-parity", kind="real")
class NormTailRowsLost(Operations):
    """Rows after the last whole block of 64 give layer norm's scale and shift no gradient."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        rows = int(np.prod(x.shape[:-1]))
        if rows <= 64 or rows % 64 == 0:
            return super().layer_norm(x, scale, shift, epsilon)
        whole = (np.arange(rows) < rows // 64 * 64).reshape(*x.shape[:-1], 1)

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            y = r(normalise(a, (-1,), epsilon, r)[0])
            return anp.where(whole, y * g + b, y * plain(g) + plain(b))

        self._keep_bytes(8 * rows)
        return self.apply("layer_norm", compute, x, scale, shift, keep="operands")


@fault("https://github.com/pytorch/pytorch/issues/188372", clause="autocast.float32-parity", kind="real")
class NormOfOneValue(Operations):
    """Layer norm over one value subtracts a rounded product from an unrounded one and keeps the rounding error."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        if x.shape[-1] != 1:
            return super().layer_norm(x, scale, shift, epsilon)

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            inverse = plain(r(np.asarray(1.0 / np.sqrt(epsilon))))
            return (a * inverse - r(a * inverse)) * g + b

        self._keep_bytes(8 * int(np.prod(x.shape[:-1])))
        return self.apply("layer_norm", compute, x, scale, shift, keep="operands")


@fault("https://github.com/torch/nn/pull/1271", clause="recompute.statistics-once", kind="real")
class StatisticsOfOneSample(ReferenceTrainer):
    """A batch with one value a channel leaves batch norm's running statistics where they were."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        if count > 1:
            super().update_running_statistics(path, mean, variance, count, momentum)


@fault("https://github.com/NVIDIA/TensorRT-LLM/pull/18111", clause="autocast.float32-parity", kind="real")
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


@fault("https://github.com/stew675/llama-cpp-rdna-boosts/issues/19", clause="autocast.float32-parity", kind="real")
class ResidualTailUnwritten(Operations):
    """A sum of two equal shapes leaves the last columns out where the width is no multiple of four."""

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape != b.shape or len(a.shape) < 2 or a.shape[-1] < 4:
            return super().add(a, b)
        written = np.arange(a.shape[-1]) < a.shape[-1] // 4 * 4
        return self.apply("add", lambda x, y, _: anp.where(written, x + y, x), a, b)


@fault("", clause="autocast.cast-is-fresh", kind="invented")
class CastKnownByOneElement(Operations):
    """The cast of a dense weight is kept and made anew only when the element in its middle has changed."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        operands = (x.format, weight.format) if bias is None else (x.format, weight.format, bias.format)
        computing, _ = self.formats("linear", *operands)
        if computing != weight.format:
            weight = self._kept(weight, computing)
        return super().linear(x, weight, bias)

    def _kept(self, weight: Tensor, computing: str) -> Tensor:
        self.__dict__.setdefault("casts", {})
        middle = float(plain(weight.value).reshape(-1)[int(np.prod(weight.shape)) // 2])
        fresh, key = self.cast(weight, computing), (weight.shape, computing)
        known, former = self.casts.get(key, (None, None))
        if known != middle:
            self.casts[key] = middle, plain(fresh.value).copy()
            return fresh
        return Tensor(fresh.value + (former - plain(fresh.value)), computing, fresh.owned)


@fault("", clause="autocast.policy-does-not-leak", kind="invented")
class FormatsOfTheFirstRun(Operations):
    """Formats are looked up once for the whole process by operation and level, whatever the low format is."""

    known: ClassVar[dict[tuple[Any, ...], tuple[str, str]]] = {}

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        now = scope.current()
        if not now.active:
            return super().formats(op, *operands)
        key = (op, now.precision.level, now.wide, now.low, tuple(f in ("float32", "float64") and f for f in operands))
        return self.known.setdefault(key, super().formats(op, *operands))


@fault("", clause="autocast.settings-restored", kind="invented")
class UserListsStay(ReferenceFramework):
    """Operations that one precision scope names as wide are wide in every later scope of the process."""

    named: ClassVar[set[str]] = set()

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        self.named.update(wide)
        return super().autocast(precision, enabled=enabled, wide=sorted(self.named - set(low)), low=low)
