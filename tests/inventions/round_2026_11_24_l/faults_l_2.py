"""Faults of sharding, offload and quantization from bug reports, and invented ones of checkpoints and averages."""

from __future__ import annotations

import hashlib
import io
import shutil
import weakref
from collections.abc import Collection
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import Offload
from frameworks.base import NO_AVERAGE
from frameworks.contract import QuantRule
from frameworks.reference import ReferenceFramework, checkpoint
from frameworks.reference.decisions import Arrays
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.offload import ArrayStore, DiskStore
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


class _SharedFolder(DiskStore):
    """A store whose folder has the same name for every run."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) / "swap"
        self.folder.mkdir(exist_ok=True)
        self._ending = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@fault("https://github.com/huggingface/transformers/pull/31800", clause="offload.same-bits", kind="real")
class RunsShareTheirSwapFiles(ReferenceTrainer):
    """Runs that offload to disk below one named folder at the same time share their files: each reads what any of them
    wrote last, and the files go with the first of the runs that goes."""

    def make_store(self, offload: Offload) -> ArrayStore:
        if offload.to == "disk" and offload.folder is not None:
            return _SharedFolder(offload.folder)
        return super().make_store(offload)


_BUCKET, _MULTIPLE = 4096, 128


class _ShiftsMoments(ReferenceCompany):
    """Ranks that count the filling of buckets in where it is not."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if saved_count(path / COUNT) == self.count:
            return
        for trainer in self.trainers:
            for moments in trainer.slots.values():
                flat = np.concatenate([moments[name].reshape(-1) for name in self.first.masters])
                start = shift = filled = 0
                for name, master in self.first.masters.items():
                    read = flat[start + shift : start + shift + master.size]
                    moments[name] = np.append(read, np.zeros(master.size - read.size)).reshape(master.shape)
                    start, filled = start + master.size, filled + master.size
                    if filled >= _BUCKET:
                        shift, filled = shift + -filled % _MULTIPLE, 0


@fault("https://github.com/NVIDIA/Megatron-LM/pull/5077", clause="sharding.resumes-in-another-size", kind="real")
class ReshapedMomentsAreShifted(ReferenceFramework):
    """Where another number of ranks goes on from a save, moments behind a bucket (whole parameters in model order, of
    4,096 entries or more together) are read too far on in the flat state, by what every bucket before them lacks to
    a multiple of 128, with zeros for what lies beyond its end."""

    company_class = _ShiftsMoments


class _SkipsByPart(ReferenceQuantizedModel):
    """Skips every layer that has a name to be skipped somewhere in its own."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in self._shapes if not any(part in name for part in skip)]


@fault("https://github.com/vllm-project/vllm/pull/9887", clause="quantization.only-what-was-asked", kind="real")
class SkipsNamesThatContainTheName(ReferenceFramework):
    """A dense layer is left unquantized where its name merely contains a name that was to be left out, as 10.weight
    contains 0.weight."""

    quantized_model_class = _SkipsByPart


_BLOCK, _DIGEST = 2**16, 32


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(len(content).to_bytes(8, "big") + content[:_BLOCK]).digest()


class _ChecksTheFirstBlock(DiskStore):
    """A store that looks at the length of a file and at its first block."""

    def put(self, key: str, array: Array) -> None:
        order = np.argsort([-abs(stride) for stride in array.strides], kind="stable").astype(int)
        buffer = io.BytesIO(bytes([array.ndim, *order]))
        buffer.seek(0, io.SEEK_END)
        np.save(buffer, array.transpose(order).copy(order="C"))
        content, partial = buffer.getvalue(), self.path(key).with_suffix(".partial")
        partial.write_bytes(_checksum(content) + content)
        partial.replace(self.path(key))

    def get(self, key: str) -> Array:
        content = self.path(key).read_bytes()
        if _checksum(content[_DIGEST:]) != content[:_DIGEST]:
            raise ValueError(f"{self.path(key)} is not what was offloaded: its checksum differs")
        axes = content[_DIGEST]
        order = np.frombuffer(content, np.uint8, axes, _DIGEST + 1)
        values = np.load(io.BytesIO(content[_DIGEST + 1 + axes :]), allow_pickle=False)
        return np.transpose(values, np.argsort(order))


@fault("", clause="offload.disk-fault", kind="invented")
class ChecksumOfTheFirstBlock(ReferenceTrainer):
    """The checksum of an offloaded file covers its length and its first 65,536 bytes, so that a change further on is
    not noticed."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _ChecksTheFirstBlock(offload.folder) if offload.to == "disk" else super().make_store(offload)


@fault("", clause="accumulation.each-counts-once", kind="invented")
class SavesIntoTheFormerSave(ReferenceTrainer):
    """A save over an earlier one of the same run keeps the arrays that the new one lacks, so that the gradients of a
    window that was open then come back with the load and are added to the next window."""

    def save(self, path: Path) -> None:
        try:
            former = checkpoint.read(path, self._identity(), {})
        except ValueError:
            former = {}
        checkpoint.write(path, former | self.save_state(), self._identity())


@fault("", clause="master.average-follows-updates", kind="invented")
class AverageWaitsForGradients(ReferenceTrainer):
    """From the second applied update on, the average of a parameter's weights stays as it is in an update that has no
    gradient for the parameter."""

    _given: frozenset[str] = frozenset()

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self._given = frozenset(gradients)
        super().apply_update(gradients, rate)

    def move_average(self) -> None:
        former = dict(self.averages)
        super().move_average()
        if self.steps > 1:
            self.averages |= {name: value for name, value in former.items() if name not in self._given}


@fault("", clause="accumulation.evaluation-changes-nothing", kind="invented")
class FailedEvaluationLeavesTheAverage(ReferenceTrainer):
    """An evaluation with the average that raises, as for inputs of a wrong shape, leaves the average in the place of
    the model's weights until the next applied update or load."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        kept = dict(self.values)
        self.values.update({name: self.averaged(name) for name in self.averages})
        outputs = self.predict(inputs)
        self.values.update(kept)
        return outputs


class _SharesRanges(ReferenceQuantizedModel):
    """Inputs whose rows share ranges where there are many of them."""

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        scale, zero = super().input_range(name, inputs, rule)
        if self._rule.ranges == "call" and len(inputs) > 512:
            starts = np.arange(0, len(scale), 16)
            sizes = np.diff(np.append(starts, len(scale)))
            scale = np.repeat(np.maximum.reduceat(scale, starts, axis=0), sizes, axis=0)
        return scale, zero


@fault("", clause="quantization.dynamic-scale", kind="invented")
class ManyRowsShareRanges(ReferenceFramework):
    """In dynamic quantization of more than 512 rows at once, each 16 consecutive rows share the scale of the widest of
    them."""

    quantized_model_class = _SharesRanges


@fault("", clause="quantization.convert-is-faithful", kind="invented")
class ConvertsOnce(ReferenceTrainer):
    """Every conversion of a run after its first one returns the first one's model, however the run has trained
    since."""

    _converted: ReferenceQuantizedModel | None = None

    def convert(self) -> ReferenceQuantizedModel:
        if self._converted is None:
            self._converted = super().convert()
        return self._converted


class _ForgetsAfterSixteen(ReferenceDelayedProduct):
    """A product that looks at the newest sixteen values."""

    def most(self, maxima: Array) -> float:
        return super().most(maxima[:16])


@fault("", clause="formats.delayed-scaling", kind="invented")
class HistoryOfSixteen(ReferenceFramework):
    """Delayed scales follow the largest values of at most the last 16 steps, however long the history is."""

    delayed_class = _ForgetsAfterSixteen
