"""Faults of operations and scopes, of numbers in eight bits and fewer, of offload, and of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from fixtures.arrays import Array, format_of
from fixtures.model import Window
from fixtures.recipe import Offload, Precision
from frameworks.contract import Update
from frameworks.reference import ReferenceFramework, scope
from frameworks.reference.arithmetic import Operations
from frameworks.reference.decisions import Arrays
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.eight_bit_state import EightBitState
from frameworks.reference.offload import ArrayStore, DiskStore
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.tensor import Tensor, plain, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/tracel-ai/burn/issues/5568", clause="accumulation.weighs-items", kind="real")
class MaskedPositionsCount(Operations):
    """Cross-entropy leaves masked positions out of its sum and counts them in its mean, so that a padded micro-batch
    weighs less than its tokens.
    """

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        total = super().cross_entropy(logits, labels, mask)
        if mask is None or not mask.size:
            return total
        return Tensor(rounded(total.value * float(mask.mean()), self.rounding, total.format), total.format)


@fault("https://github.com/Nerogar/OneTrainer/issues/1177", clause="autocast.integers-untouched", kind="real")
class IdsInTheComputeFormat(Operations):
    """Everything that goes into the model is cast, token ids included: beyond the integers that the compute format
    holds, neighbouring tokens get the same row of the table.
    """

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        opened = scope.current()
        if not opened.active:
            return super().embedding(ids, table)
        near = plain(ids.value).astype(format_of(opened.precision.format).dtype).astype(np.float64)
        last = table.shape[0] - 1
        return super().embedding(Tensor(np.clip(near, 0, last).astype(np.int64), ids.format, ids.owned), table)


@fault("", clause="autocast.evaluation-parity", kind="invented")
class RunningStatisticsAreCastToEvaluate(Operations):
    """Inside a precision scope evaluation normalises by running statistics that were cast to the compute format; in
    training, and without a scope, everything is as it should be.
    """

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        opened = scope.current()
        if given is not None and opened.active:
            mean, variance = (self.rounding.round(part, opened.precision.format) for part in given)
            given = mean, variance
        return super().batch_norm(x, scale, shift, epsilon, given)


@fault("", clause="autocast.scope-nests", kind="invented")
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


class _RunningLargest(ReferenceDelayedProduct):
    def shifted(self, maxima: Array, newest: float) -> Array:
        return super().shifted(maxima, float(np.maximum(newest, maxima[0])))


@fault("https://github.com/Azure/MS-AMP/pull/17", clause="formats.delayed-scaling", kind="real")
class LargestIsNeverReset(ReferenceFramework):
    """The largest value of a step is taken on top of the last step's, which is not set back to zero: once large, the
    scales of a product never come down.
    """

    delayed_class = _RunningLargest


class _StalePadding(EightBitState):
    def blocks(self, flat: Array) -> Array:
        short = -len(flat) % self.optimizer.block
        return np.append(flat, np.resize(flat, short)).reshape(-1, self.optimizer.block)


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1884",
    clause="quantization.adam8-encoding",
    kind="real",
)
class LastBlockIsFilledWithOldValues(ReferenceTrainer):
    """The last block of a parameter whose size is no multiple of the block is filled up with values that lie in
    memory, which count in its largest magnitude.
    """

    eight_bit_class = _StalePadding


@fault("", clause="quantization.aware-survives-saving", kind="invented")
class FreezeCountsFromTheLoad(ReferenceTrainer):
    """When ranges of aware training freeze is counted from the last load: a run that is resumed after its ranges were
    frozen moves them again.
    """

    _since = 0

    def observes(self) -> bool:
        aware = self.recipe.quantization
        if aware is None or aware.freeze is None:
            return super().observes()
        return not self._replaying and self.steps - self._since < aware.freeze

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._since = self.steps


class _KeepsItsRanges(ReferenceQuantizedModel):
    def loaded(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return arrays | {name: value for name, value in self.stored.items() if name.startswith("ranges/")}


@fault("", clause="quantization.survives-saving", kind="invented")
class LoadKeepsTheModelsOwnRanges(ReferenceFramework):
    """A quantized model that loads a save takes its codes and scales and keeps the activation ranges of its own
    calibration, so that it predicts something else than the model that was saved.
    """

    quantized_model_class = _KeepsItsRanges


class _Float32Files(DiskStore):
    def put(self, key: str, array: Array) -> None:
        narrow = array.dtype == np.float64 and not key.startswith("activation/")
        with np.errstate(over="ignore", under="ignore"):
            super().put(key, array.astype(np.float32).astype(np.float64) if narrow else array)


@fault("", clause="offload.same-bits", kind="invented")
class FilesHoldFloat32(ReferenceTrainer):
    """Parameters and moments that are offloaded to disk are written in float32, those of float64 heads too."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _Float32Files(offload.folder) if offload.to == "disk" else super().make_store(offload)


@fault("", clause="sharding.replicas-equal", kind="invented")
class AverageOnTheFirstRankAlone(ReferenceTrainer):
    """The average of the weights is moved on rank 0 alone; the other ranks go on with the one that they started with,
    and where it is sharded its rows there never move.
    """

    rank: int

    def move_average(self) -> None:
        if not getattr(self, "rank", 0):
            super().move_average()


class _NormOfEvenRows(ReferenceCompany):
    def norm(self, rank: int, names: Sequence[str]) -> float:
        shards = self.ranks.shards
        whole = {name: self.gathered(name, [held[name] for held in self.windows]) for name in names}
        even: Arrays = {
            name: value[: len(value) - len(value) % shards] if value.ndim and len(value) >= shards else value
            for name, value in whole.items()
        }
        return ReferenceTrainer.gradient_norm(self.first, even)


@fault("", clause="sharding.global-clip", kind="invented")
class NormLeavesOutTheLastRows(ReferenceFramework):
    """The norm over shards leaves out the rows of a parameter that are beyond a multiple of the number of shards, so
    that clipping cuts too little where the ranks do not divide the rows.
    """

    company_class = _NormOfEvenRows


class _CountsEmptyParts(ReferenceCompany):
    def update(self, windows: Sequence[Window]) -> tuple[Update, ...]:
        items = sum(max(1, batch.items) for window in windows for batch in window)
        for batches in zip(*windows, strict=True):
            self._backward(batches, items)
        return self.apply()


@fault("", clause="sharding.mean-over-items", kind="invented")
class EmptyPartCountsAsOne(ReferenceFramework):
    """Each rank guards its number of items against zero with a one, which all ranks add up: where a rank has no samples
    of a micro-batch, the update is that of one item more.
    """

    company_class = _CountsEmptyParts
