"""Faults of the round: saves and loads, offload, sharding, quantization and narrow formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import AdamW, Offload
from frameworks.contract import QuantRule, Update
from frameworks.reference import ReferenceFramework, checkpoint
from frameworks.reference.decisions import Arrays
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.eight_bit_state import EightBitState
from frameworks.reference.formats import ReferenceFormats
from frameworks.reference.offload import ArrayStore, DiskStore, HostStore
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/atomistic-machine-learning/schnetpack/pull/785", clause="resume.bit-identical", kind="real")
class LoadTrainsOnFromTheAverage(ReferenceTrainer):
    """A run that keeps a moving average of its weights goes on from the average after a load, not from the weights."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.recipe.average is not None:
            averages = {n: self.rounding.round(a, self.master_formats[n]) for n, a in self.averages.items()}
            self.masters = self.held("parameters", "master", averages)
            self.sync_masters()


@fault("https://github.com/vllm-project/speculators/pull/899", clause="master.moments-keep-precision", kind="real")
class OptimizerIsSavedInBfloat16(ReferenceTrainer):
    """A save casts the optimizer's moments and update counts to bfloat16, as it may do with weights: a loaded run has
    coarser moments, and counts above 256 are rounded."""

    def save(self, path: Path) -> None:
        state = self.save_state()
        for name, value in state.items():
            if name.startswith("slot."):
                state[name] = self.rounding.round(value, "bfloat16")
        state["counts"] = self.rounding.round(state["counts"].astype(np.float64), "bfloat16").astype(np.int64)
        checkpoint.write(path, state, self._identity())


@fault("https://github.com/tenstorrent/tt-metal/pull/53222", clause="resume.bit-identical", kind="real")
class LoadSwapsTheBetas(ReferenceTrainer):
    """After a load AdamW reads its two betas in the wrong order."""

    _loaded = False

    def restore(self, path: Path) -> None:
        super().restore(path)
        self._loaded = True

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        own = self.recipe
        if self._loaded and isinstance(own.optimizer, AdamW):
            swapped = replace(own.optimizer, beta1=own.optimizer.beta2, beta2=own.optimizer.beta1)
            self.recipe = own.but(optimizer=swapped)
        try:
            super().apply_update(gradients, rate)
        finally:
            self.recipe = own


@fault("https://github.com/ultralytics/yolov5/issues/292", clause="resume.bit-identical", kind="real")
class FirstRateAfterLoadIsTheBaseRate(ReferenceTrainer):
    """The first update after a load uses the base learning rate, whatever the schedule had come to; the second one is
    right again."""

    _fresh = False

    def restore(self, path: Path) -> None:
        super().restore(path)
        self._fresh = True

    def learning_rate(self) -> float:
        return self.recipe.optimizer.learning_rate if self._fresh else super().learning_rate()

    def apply(self) -> Update:
        update = super().apply()
        self._fresh = False
        return update


@fault("", clause="resume.restored-is-complete", kind="invented")
class PredictionsKeepWeightsOverALoad(ReferenceTrainer):
    """Evaluation keeps the weights that it read until the next update; a load does not end that, so that predictions
    right after it are those of the weights before it."""

    _read: dict[str, Tensor] | None = None

    def sync_masters(self) -> None:
        super().sync_masters()
        self._read = None

    def _tensors(self) -> dict[str, Tensor]:
        if self._read is None:
            self._read = super()._tensors()
        return self._read


@fault("", clause="resume.unclaimed-is-refused", kind="invented")
class AverageIsOptionalInLoads(ReferenceTrainer):
    """A checkpoint without an average is taken by a run that keeps one, which then begins it anew, and one with an
    average by a run without, which drops it; neither says so."""

    def _identity(self) -> str:
        return f"{self.model.name} {self.model.layers} {self.recipe.but(offload=None, average=None)}"

    def restore(self, path: Path) -> None:
        needed = {name: value for name, value in self.save_state().items() if not name.startswith("average/")}
        self.load_state(checkpoint.read(path, self._identity(), needed))
        if self.recipe.average is None:
            self.averages = {}
        elif not self.averages:
            self.averages = dict(self.masters)


class _NarrowHostStore(HostStore):
    """Keeps parameters and moments in float32."""

    def put(self, key: str, array: Array) -> None:
        wide = array.dtype == np.float64 and not key.startswith("activation/")
        super().put(key, array.astype(np.float32).astype(np.float64) if wide else array)


@fault("", clause="offload.same-bits", kind="invented")
class HostKeepsFloat32(ReferenceTrainer):
    """Parameters and moments that are offloaded to the host are kept in float32, so that those of float64 heads lose
    half of their digits."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _NarrowHostStore() if offload.to == "host" else super().make_store(offload)


class _ComparingDiskStore(DiskStore):
    """Writes weights only where their first row is another one than that of the file."""

    def put(self, key: str, array: Array) -> None:
        if not (key.startswith(("master/", "value/")) and self._unchanged(key, array)):
            super().put(key, array)

    def _unchanged(self, key: str, array: Array) -> bool:
        try:
            held = self.get(key)
        except (OSError, ValueError):
            return False
        return held.shape == array.shape and bool(np.array_equal(np.atleast_1d(held)[0], np.atleast_1d(array)[0]))


@fault("", clause="offload.trains", kind="invented")
class DiskWritesWhatLooksChanged(ReferenceTrainer):
    """A weight in a file is written again only if its first row changed: the update of a weight whose first row got no
    gradient, such as that of a pixel that is always blank, is lost."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _ComparingDiskStore(offload.folder) if offload.to == "disk" else super().make_store(offload)


class _NormInBfloat16(ReferenceCompany):
    """Each rank's norm is rounded to bfloat16 before they are joined."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        if self.ranks.shards == 1:
            return super().norm(rank, names)
        squares = 0.0
        for place in range(self.ranks.shards):
            parts = [self.shard(self.windows[place][name], place) for name in names]
            own = np.sqrt(np.asarray(sum(float(np.vdot(part, part)) for part in parts)))
            squares += float(self.ops.rounding.round(own, "bfloat16")) ** 2
        return float(self.ops.rounding.round(np.sqrt(np.asarray(squares)), "float32"))


@fault("https://github.com/NVIDIA-NeMo/Automodel/pull/825", clause="sharding.global-clip", kind="real")
class RanksJoinNormsInBfloat16(ReferenceFramework):
    """The norms of the ranks' shards are rounded to bfloat16 before they are joined, so that the norm that clipping
    uses and reports is off by up to a few thousandths."""

    company_class = _NormInBfloat16


class _PaddingInPlaceOfRows(ReferenceCompany):
    """A load by another number of ranks takes padding for the rows that the former ranks did not share evenly."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        saved = saved_count(path / COUNT)
        if self.ranks.level == "replicated" or saved == self.count:
            return
        for trainer in self.trainers:
            for name, master in trainer.masters.items():
                rows = np.atleast_1d(master.copy())
                over = len(rows) % saved
                if over:
                    rows[-over:] = 0.0
                    trainer.masters[name] = rows.reshape(master.shape)
            trainer.sync_masters()


@fault("https://github.com/deepspeedai/DeepSpeed/pull/1380", clause="sharding.resumes-in-another-size", kind="real")
class LoadTakesPaddingForRows(ReferenceFramework):
    """Sharded weights that another number of ranks loads have zeros for the last rows, wherever the number of rows was
    no multiple of the number of ranks that saved them."""

    company_class = _PaddingInPlaceOfRows


class _TinyIsNotReduced(ReferenceCompany):
    """Parameters with fewer entries than there are ranks are not added up."""

    def reduce(self, name: str, parts: Sequence[Array]) -> Array:
        return super().reduce(name, parts[:1] if parts[0].size < self.count else parts)


@fault("", clause="sharding.equals-whole", kind="invented")
class TinyParametersKeepOneGradient(ReferenceFramework):
    """A parameter with fewer entries than there are ranks is left out of the reduction and gets rank 0's share of its
    gradient alone."""

    company_class = _TinyIsNotReduced


class _WholeEnds(ReferenceQuantizedModel):
    """Cuts the ends of calibrated ranges off to whole numbers."""

    def code_range(self, batches: Sequence[Array], rule: QuantRule | None) -> tuple[float, float]:
        values = np.concatenate([batch.reshape(-1) for batch in batches])
        lowest, highest = np.trunc(values.min()), np.trunc(values.max())
        if rule is None or lowest == highest:
            return super().code_range(batches, rule)
        return super().code_range([np.array([lowest, highest])], rule)


@fault("https://github.com/pytorch/pytorch/issues/83672", clause="quantization.calibrated-range", kind="real")
class CalibrationCutsEndsOff(ReferenceFramework):
    """Calibration converts the lowest and the highest value to integers, so that a range from -0.7 to 3.9 becomes that
    from 0 to 3 and values beyond it are clipped."""

    quantized_model_class = _WholeEnds


class _StaleBlocks(EightBitState):
    """The last block is filled up with what the block before it left in the buffer."""

    def blocks(self, flat: Array) -> Array:
        block = self.optimizer.block
        short, whole = -len(flat) % block, len(flat) // block * block
        if not (short and whole):
            return super().blocks(flat)
        return np.append(flat, flat[whole - short : whole]).reshape(-1, block)


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1884",
    clause="quantization.adam8-encoding",
    kind="real",
)
class LastBlockTakesForeignMagnitudes(ReferenceTrainer):
    """The last block of a moment of eight bits, where it is not full, takes entries of the block before it into its
    largest magnitude, so that its own entries get codes that are too coarse."""

    eight_bit_class = _StaleBlocks


class _NeverForgets(ReferenceDelayedProduct):
    """The largest value of a step is joined with that of the step before."""

    def shifted(self, maxima: Array, newest: float) -> Array:
        return super().shifted(maxima, max(newest, float(maxima[0])))


@fault("https://github.com/Azure/MS-AMP/pull/17", clause="formats.delayed-scaling", kind="real")
class LargestValueIsNotResetBetweenSteps(ReferenceFramework):
    """The largest value of a step is not set to zero before the next one, so that a single large value is remembered
    for ever and later steps are cast too coarsely."""

    delayed_class = _NeverForgets


class _OneTable(ReferenceFormats):
    """Decodes both operands by the format of the first."""

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        return super().float8_product(a, b, (formats[0], formats[0]))


@fault("", clause="formats.products", kind="invented")
class ProductsKnowOneFormat(ReferenceFramework):
    """A product of operands in two formats of eight bits, such as activations and gradients, decodes both by the format
    of the first."""

    formats_class = _OneTable


@fault("", clause="quantization.ranges-follow", kind="invented")
class ConversionFreezesRanges(ReferenceTrainer):
    """To convert the model in the middle of aware training freezes the ranges of the run that goes on."""

    _converted = False

    def convert(self) -> ReferenceQuantizedModel:
        self._converted = True
        return super().convert()

    def observes(self) -> bool:
        return not self._converted and super().observes()
