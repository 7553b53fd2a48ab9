"""Faults of what lies around the steps: formats, offload, quantization, saves and loads, sharding."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import Offload, OffloadedKind
from frameworks.contract import QuantRule, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.decisions import Arrays
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.formats import ReferenceFormats
from frameworks.reference.offload import ArrayStore, Away, DiskStore
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.quantizers import ReferenceQuantizers
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.rounding import Rounding
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

# formats


class _DecodesByShift(ReferenceFormats):
    """Reads exponent and mantissa of a code without a look at its special values."""

    def decode(self, codes: Array, format_name: str) -> Array:
        values = super().decode(codes, format_name)
        if format_name != "float8_e4m3fn":
            return values
        return np.where(np.isnan(values), np.where(codes > 127, -480.0, 480.0), values).astype(np.float32)


@fault("https://github.com/ml-explore/mlx/issues/4135", clause="formats.decode", kind="real")
class NaNIsDecodedAs480(ReferenceFramework):
    """The two NaN codes of float8_e4m3fn come back as the numbers 480 and -480."""

    formats_class = _DecodesByShift


class _NeverReset(ReferenceDelayedProduct):
    """The largest value of a step begins at that of the step before."""

    def shifted(self, maxima: Array, newest: float) -> Array:
        before = float(maxima[0])
        return super().shifted(maxima, max(newest, before) if np.isfinite([newest, before]).all() else newest)


@fault("https://github.com/Azure/MS-AMP/pull/17", clause="formats.delayed-scaling", kind="real")
class LargestValueIsNeverReset(ReferenceFramework):
    """The running largest value is not set back between steps, so that a scale never falls however long ago it was."""

    delayed_class = _NeverReset


# offload


@fault("https://github.com/NVIDIA/Megatron-LM/pull/5071", clause="offload.same-bits", kind="real")
class OffloadedMastersAreNotLoaded(ReferenceTrainer):
    """Where parameters are offloaded a load reaches the model's weights alone, and the next update takes old ones."""

    def load_state(self, arrays: Arrays) -> None:
        away = dict(self.masters) if isinstance(self.masters, Away) else {}
        super().load_state(arrays)
        for name, value in away.items():
            self.masters[name] = value


class _InTheModelsFormat(Away):
    """Arrays that are read in the format of the model's parameter of that name."""

    def __init__(
        self, store: ArrayStore, group: str, arrays: Arrays, rounding: Rounding, formats: Mapping[str, str]
    ) -> None:
        super().__init__(store, group, arrays)
        self._rounding, self._formats = rounding, formats

    def __getitem__(self, name: str) -> Array:
        return self._rounding.round(super().__getitem__(name), self._formats[name])


@fault("https://github.com/huggingface/transformers/pull/46849", clause="offload.same-bits", kind="real")
class FilesAreReadInTheModelsFormat(ReferenceTrainer):
    """Masters that lie on disk are read in the low format of the model, so small updates are lost at O2."""

    def held(self, kind: OffloadedKind, group: str, arrays: Arrays) -> MutableMapping[str, Array]:
        found = super().held(kind, group, arrays)
        on_disk = self.recipe.offload is not None and self.recipe.offload.to == "disk"
        if group != "master" or not on_disk or not isinstance(found, Away) or self.store is None:
            return found
        return _InTheModelsFormat(self.store, group, arrays, self.rounding, self.formats)


class _ProcessFolder(DiskStore):
    """Files in a folder that is named after the process."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) / f"run-{os.getpid()}"
        self.folder.mkdir(exist_ok=True)
        self._ending = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@fault("", clause="offload.same-bits", kind="invented")
class RunsOfAProcessShareFiles(ReferenceTrainer):
    """Two runs of one process that offload to the same folder write to the same files and read each other's arrays."""

    def make_store(self, offload: Offload) -> ArrayStore:
        if offload.to != "disk" or offload.folder is None:
            return super().make_store(offload)
        return _ProcessFolder(offload.folder)


# quantization


class _LastGroupIsFilledUp(ReferenceQuantizers):
    """A last group that is short is filled up with what the memory still holds of the group before."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        lowest, highest = super().range_of(values, rule)
        if not rule.group or rule.axis is None:
            return lowest, highest
        length = values.shape[rule.axis]
        short = length % rule.group
        if not short or length < rule.group:
            return lowest, highest
        seen = np.moveaxis(values, rule.axis, 0)[length - rule.group :]
        lowest, highest = lowest.copy(), highest.copy()
        np.moveaxis(lowest, rule.axis, 0)[length - short :] = seen.min(axis=0)
        np.moveaxis(highest, rule.axis, 0)[length - short :] = seen.max(axis=0)
        return lowest, highest


class _ModelOfFilledUpGroups(ReferenceQuantizedModel):
    """A model whose weights have such groups."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        self._quantizers = _LastGroupIsFilledUp()
        return super().chosen(skip)


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1884",
    clause="quantization.weights-as-declared",
    kind="real",
)
class ShortGroupTakesStaleValues(ReferenceFramework):
    """In four bits the scale of a last group that is shorter follows values of the group before it too."""

    quantizers_class = _LastGroupIsFilledUp
    quantized_model_class = _ModelOfFilledUpGroups


class _RangesByShape(ReferenceQuantizedModel):
    """Keeps the ranges of inputs that it has computed, by layer and shape."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._kept_ranges: dict[tuple[str, tuple[int, ...]], tuple[Array, Array]] = {}
        super().__init__(*args, **named)

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        key = name, inputs.shape
        if key not in self._kept_ranges:
            self._kept_ranges[key] = super().input_range(name, inputs, rule)
        return self._kept_ranges[key]


@fault("", clause="quantization.dynamic-scale", kind="invented")
class DynamicRangesAreKeptByShape(ReferenceFramework):
    """A dynamically quantized layer takes the ranges of the first inputs of a shape for all later ones of it."""

    quantized_model_class = _RangesByShape


@fault("", clause="quantization.ranges-follow", kind="invented")
class FirstMicroBatchAloneIsObserved(ReferenceTrainer):
    """In aware training only the first micro-batch of a window moves the ranges."""

    def observes(self) -> bool:
        return super().observes() and not self.window.micro_batches


# saves and loads


@fault("https://github.com/harubaru/waifu-diffusion/pull/31", clause="resume.save-has-no-side-effects", kind="real")
class SavingLeavesTheAverageInTheModel(ReferenceTrainer):
    """A save puts the averaged weights into the model and does not put the trained ones back, so training goes on
    from the average."""

    def save(self, path: Path) -> None:
        super().save(path)
        for name, average in self.averages.items():
            self.masters[name] = self.rounding.round(average, self.master_formats[name])
        self.sync_masters()


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/1772", clause="resume.bit-identical", kind="real")
class ScheduleIsSavedBeforeItsStep(ReferenceTrainer):
    """What is saved of the schedule is its state before the last update, so after a load its steps come one late."""

    def save(self, path: Path) -> None:
        schedule = self.schedule
        if self.recipe.schedule is not None:
            self.schedule = max(schedule - 1, 0)
        try:
            super().save(path)
        finally:
            self.schedule = schedule


@fault("https://github.com/AI-Hypercomputer/maxtext/pull/4343", clause="resume.bit-identical", kind="real")
class RunningStatisticsAreNotSaved(ReferenceTrainer):
    """The running statistics of batch norm are no part of a save; a load sets them to where a new run begins."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        self.statistics |= {name: value.astype(np.float64) for name, value in self.model.buffers().items()}


# sharding


class _LastShardStands(ReferenceCompany):
    """The last rank's rows of what the ranks do not divide miss the update."""

    def _apply(self) -> tuple[Update, ...]:
        before, steps = dict(self.first.masters), self.first.steps
        updates = super()._apply()
        if self.first.steps > steps and self.sharded("parameter"):
            for name, old in before.items():
                self._put_back(name, old)
            for trainer in self.trainers:
                trainer.sync_masters()
        return updates

    def _put_back(self, name: str, old: Array) -> None:
        rows = len(np.atleast_1d(old))
        if rows % self.ranks.shards == 0:
            return
        own = self.shard(np.arange(rows), self.ranks.shards - 1)
        for trainer in self.trainers:
            value = np.atleast_1d(trainer.masters[name].copy())
            value[own] = np.atleast_1d(old)[own]
            trainer.masters[name] = value.reshape(old.shape)


@fault("https://github.com/pytorch/pytorch/issues/176076", clause="sharding.equals-whole", kind="real")
class LastRankOfUnevenShardsStands(ReferenceFramework):
    """Where parameters are sharded and the ranks do not divide the rows of one, the last rank's rows never move."""

    company_class = _LastShardStands


class _MeanOfThoseThatUsed(ReferenceCompany):
    """Gradients are averaged over the ranks that have one."""

    def reduced(self, gradients: Sequence[Arrays]) -> Arrays:
        users = {name: sum(name in own for own in gradients) for name in self.first.masters}
        return {
            name: gradient * (self.count / users[name]) if users[name] else gradient
            for name, gradient in super().reduced(gradients).items()
        }


@fault("", clause="sharding.missing-gradient", kind="invented")
class MissingGradientsAreNotZeros(ReferenceFramework):
    """The gradient of a parameter that only some ranks use is averaged over these, so it is too large by all / some."""

    company_class = _MeanOfThoseThatUsed


class _NewRanksAreNew(ReferenceCompany):
    """A rank that the save has no part of keeps the scaler that it was made with."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        for trainer in self.trainers[saved_count(path / COUNT) :]:
            trainer.scaler = trainer.settings


@fault("", clause="sharding.resumes-in-another-size", kind="invented")
class NewRanksBeginWithAFreshScale(ReferenceFramework):
    """A run that is loaded by more ranks than saved it has the saved loss scale on the old ranks alone."""

    company_class = _NewRanksAreNew
