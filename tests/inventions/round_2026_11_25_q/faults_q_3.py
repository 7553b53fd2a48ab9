"""Faults of offload, of formats and quantization, and of ranks."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from fixtures.narrow import NarrowFormat
from frameworks.contract import Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.decisions import Arrays
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.eight_bit_state import EightBitMoments, EightBitState
from frameworks.reference.formats import ReferenceFormats
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

# offload


@fault("https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4082", clause="offload.same-bits", kind="real")
class LoadLeavesOffloadedMasters(ReferenceTrainer):
    """A load into a run whose masters are offloaded restores the low-precision weights and not these masters.

    The first update after the load starts from the masters of before, and the loaded weights are gone.
    """

    def load_state(self, arrays: Arrays) -> None:
        offload, kept = self.recipe.offload, Arrays()
        if offload is not None and "parameters" in offload.what:
            kept = {n: m for n, m in self.masters.items() if self.formats[n] != self.master_formats[n]}
        super().load_state(arrays)
        for name, master in kept.items():
            self.masters[name] = master


@fault("", clause="offload.acts", kind="invented")
class LoadedMomentsStayOnTheDevice(ReferenceTrainer):
    """A load puts the optimizer's moments on the device and does not offload them again.

    A resumed run holds on its device what it was asked to keep away.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.slots = {s: m if isinstance(m, EightBitMoments) else dict(m) for s, m in self.slots.items()}


# formats and quantization


class _TiesOfExponentsGoUp(ReferenceFormats):
    def codes(self, magnitude: Array, narrow: NarrowFormat) -> Array:
        codes = super().codes(magnitude, narrow)
        if narrow.signed:
            return codes
        positive = narrow.positive
        places = np.clip(codes, 0, len(positive) - 2)
        halfway = (positive[places] + positive[places + 1]) / 2
        return np.where((codes < len(positive) - 1) & (magnitude == halfway), codes + 1, codes)


@fault("https://github.com/jax-ml/ml_dtypes/pull/398", clause="formats.round-to-nearest", kind="real")
class TiesOfExponentsGoUp(ReferenceFramework):
    """A cast to the format of exponents alone rounds every half-way value up instead of to the even code.

    A scale of 3 becomes 4, and one of 0.75 becomes 1.
    """

    formats_class = _TiesOfExponentsGoUp


class _SkipsByPartsOfNames(ReferenceQuantizedModel):
    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in super().chosen(()) if not any(part in name for part in skip)]


@fault("https://github.com/sgl-project/sglang/pull/23467", clause="quantization.only-what-was-asked", kind="real")
class SkipsByPartsOfNames(ReferenceFramework):
    """A layer is left out of quantization if its name contains one of the names that were to be left out.

    To leave out layer 2 leaves layer 12 in floating point too.
    """

    quantized_model_class = _SkipsByPartsOfNames


class _ForgetsWhatIsNotFinite(ReferenceDelayedProduct):
    def largest(self, values: Array) -> float:
        found = super().largest(values)
        return found if np.isfinite(found) else 0.0


@fault("", clause="formats.delayed-scaling", kind="invented")
class DelayedHistoryForgetsWhatIsNotFinite(ReferenceFramework):
    """A training step whose largest value is not finite enters the history of delayed scaling as 0.

    The scale of the steps after it follows the rest of the history, where it was to stay as it is.
    """

    delayed_class = _ForgetsWhatIsNotFinite


@fault("", clause="quantization.ranges-follow", kind="invented")
class RangesFollowTheFirstMicroBatch(ReferenceTrainer):
    """In aware training only the first micro-batch of a window moves the ranges.

    With accumulation they follow a part of the data, and what is larger in the rest is clipped.
    """

    def observes(self) -> bool:
        return super().observes() and not self.window.micro_batches


class _ShortBlockTakesItsNeighbours(EightBitState):
    short = False

    def encode(self, slot: str, moment: Array) -> tuple[Array, Array]:
        self.short = moment.size % self.optimizer.block != 0
        return super().encode(slot, moment)

    def largest(self, blocks: Array) -> Array:
        found = super().largest(blocks)
        if self.short and len(found) > 1:
            found[-1] = found[-2]
        return found


@fault("", clause="quantization.adam8-encoding", kind="invented")
class ShortBlockTakesItsNeighbours(ReferenceTrainer):
    """Of 8-bit moments, a last block that is not full is encoded by the largest magnitude of the block before.

    Its moments are clipped where they are larger, and coarse where they are smaller.
    """

    eight_bit_class = _ShortBlockTakesItsNeighbours


# ranks


class _EmptyShardsDoNotCount(ReferenceCompany):
    def _apply(self) -> tuple[Update, ...]:
        counts = [dict(trainer.counts) for trainer in self.trainers]
        updates = super()._apply()
        for trainer, before in zip(self.trainers, counts, strict=True):
            for name, master in trainer.masters.items():
                if self.sharded("optimizer") and not self.shard(master, trainer.rank).size:
                    trainer.counts[name] = before[name]
        return updates


@fault("https://github.com/NVIDIA/TransformerEngine/pull/3318", clause="sharding.replicas-equal", kind="real")
class EmptyShardsDoNotCount(ReferenceFramework):
    """A rank that holds no row of a parameter leaves that parameter's count of updates where it was.

    Ranks disagree about the count, and so do the parts of a checkpoint that they write.
    """

    company_class = _EmptyShardsDoNotCount


def _cut_by_another_alignment(value: Array, saved: int, count: int) -> Array:
    """The rows of shards that `saved` ranks padded, as a reader finds them that leaves the padding out of account."""
    rows = np.atleast_1d(value)
    padded = np.concatenate([rows, np.zeros_like(np.resize(rows, (-len(rows) % saved, *rows.shape[1:])))])
    length, stride = -(-len(rows) // count), len(padded) // count
    found = np.concatenate([padded[rank * stride : rank * stride + length] for rank in range(count)])
    whole = np.zeros_like(rows)
    whole[: len(found)] = found[: len(rows)]
    return whole.reshape(value.shape)


class _PaddingShiftsMoments(ReferenceCompany):
    def restore(self, path: Path) -> None:
        super().restore(path)
        saved = saved_count(path / COUNT)
        if saved == self.count or not self.sharded("optimizer"):
            return
        for trainer in self.trainers:
            for moments in trainer.slots.values():
                for name in list(moments):
                    moments[name] = _cut_by_another_alignment(moments[name], saved, self.ranks.shards)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/5105", clause="sharding.resumes-in-another-size", kind="real")
class PaddingShiftsMoments(ReferenceFramework):
    """A load of a sharded run by another number of ranks leaves the padding of the saved shards out of account.

    Moments of parameters whose rows the ranks do not divide come back at the places of other rows.
    """

    company_class = _PaddingShiftsMoments


class _OnlyTheFirstRankLoadsTheAverage(ReferenceCompany):
    def restore(self, path: Path) -> None:
        super().restore(path)
        for trainer in self.trainers[1:]:
            if trainer.averages:
                trainer.averages = {name: master.copy() for name, master in trainer.masters.items()}


@fault("", clause="sharding.resumes-in-another-size", kind="invented")
class OnlyTheFirstRankLoadsTheAverage(ReferenceFramework):
    """After a load, rank 0 has the saved average of the weights and every other rank begins it anew from the weights.

    Ranks disagree about the average, and evaluation with it depends on the rank.
    """

    company_class = _OnlyTheFirstRankLoadsTheAverage
