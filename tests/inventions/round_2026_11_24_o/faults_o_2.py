"""Faults of optimizers, averages, scaling, saves and offload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Adam, AdamW, Offload, Recipe
from frameworks.contract import Conventions
from frameworks.reference import checkpoint
from frameworks.reference.arithmetic import Operations
from frameworks.reference.decisions import Arrays
from frameworks.reference.offload import Activations, ArrayStore, DiskStore, HostStore
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

_CHUNK = 65_536
"""Elements that a check takes at a time."""
_HEAD = 512
"""Entries by which an array on disk is taken for unchanged."""
_FILES = 16
"""Saves that are kept in the process."""


@fault("", clause="laws.programs", kind="invented")
class BetaOfZeroIsTheDefault(ReferenceTrainer):
    """A beta1 of 0, for Adam and AdamW, is taken for one that was not given, and 0.9 is used."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        given, optimizer = self.recipe, self.recipe.optimizer
        if isinstance(optimizer, Adam | AdamW):
            self.recipe = given.but(optimizer=replace(optimizer, beta1=optimizer.beta1 or 0.9))
        try:
            super().apply_update(gradients, rate)
        finally:
            self.recipe = given


@fault("", clause="master.decay-survives", kind="invented")
class DecayByTheRateBefore(ReferenceTrainer):
    """The weight decay of AdamW acts with the learning rate of the update that the run made before, so that it is too
    large or too small in each update in which a schedule has changed the rate (to anything but 0)."""

    _former: float | None = None

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        given, optimizer = self.recipe, self.recipe.optimizer
        former = rate if self._former is None else self._former
        if isinstance(optimizer, AdamW) and rate not in (0.0, former):
            decay = optimizer.weight_decay * former / rate
            self.recipe = given.but(optimizer=replace(optimizer, weight_decay=decay))
        try:
            super().apply_update(gradients, rate)
        finally:
            self.recipe, self._former = given, rate


@fault("", clause="scaling.detects-nan", kind="invented")
class ChecksWholeBlocksOnly(ReferenceTrainer):
    """Gradients of more than 65,536 elements are searched for what is not finite in whole blocks of so many; what
    comes after the last whole block is not looked at."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        def searched(gradient: Array) -> Array:
            size = int(gradient.size)
            return gradient.reshape(-1)[: size - size % _CHUNK] if size > _CHUNK else gradient

        return super().found_nonfinite({name: searched(gradient) for name, gradient in gradients.items()})


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/pull/19589", clause="accumulation.once-per-window", kind="real"
)
class EveryOptimizerMovesTheSchedule(ReferenceTrainer):
    """Without ranks, the schedule is moved on by each optimizer that makes its step: by two an update where there are
    two optimizers."""

    _stepped = 1

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self._stepped = len({self.optimizer_of(name) for name in gradients})
        super().apply_update(gradients, rate)

    def advance_schedule(self) -> None:
        self.schedule += self._stepped


@fault("", clause="master.average-follows-updates", kind="invented")
class AverageWaitsForBothOptimizers(ReferenceTrainer):
    """The moving average takes in nothing from an update in which one of two optimizers was skipped for its overflow,
    not even the weights that the other one has moved."""

    _partial = False

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self._partial = len(gradients) < len(self.window.gradients)
        super().apply_update(gradients, rate)

    def move_average(self) -> None:
        if not self._partial:
            super().move_average()


@fault("", clause="master.average-is-evaluated", kind="invented")
class AverageStaysAfterAnError(ReferenceTrainer):
    """Evaluation with the average puts it in the place of the model's weights, and where that evaluation raises, as
    for inputs of a wrong shape, they are not put back until the next applied update."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.average is None:
            return super().predict_averaged(inputs)
        own = dict(self.values)
        for name in own:
            self.values[name] = self.averaged(name)
        outputs = self.predict(inputs)
        self.values.update(own)
        return outputs


@fault("https://github.com/deepspeedai/DeepSpeed/pull/5289", clause="resume.bit-identical", kind="real")
class LoadGivesEveryParameterTheSameCount(ReferenceTrainer):
    """A load sets the count of updates of each parameter to the run's number of updates, also where a parameter had
    no gradient, or an optimizer was skipped, in some of them."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.counts = dict.fromkeys(self.counts, self.steps)


@fault("https://github.com/deepspeedai/DeepSpeed/issues/5283", clause="resume.bit-identical", kind="real")
class LoadDealsMomentsByTextOrder(ReferenceTrainer):
    """A load deals the moments of parameters of one shape, which were saved in the model's order, out in the text
    order of their layers' numbers: in a model of more than ten layers, layer 10 comes before layer 2."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        shapes = self.model.parameter_shapes()
        for shape in dict.fromkeys(shapes.values()):
            names = [name for name, own in shapes.items() if own == shape]
            ordered = sorted(names, key=lambda name: name.partition(".")[0])
            if names == ordered:
                continue
            for moments in self.slots.values():
                for name, moment in zip(ordered, [moments[name] for name in names], strict=True):
                    moments[name] = moment


@fault("https://github.com/NVIDIA/apex/pull/144", clause="resume.bit-identical", kind="real")
class LoadRoundsRunningStatistics(ReferenceTrainer):
    """At levels O2 and O3 a load brings the running statistics of batch norm to the low format and back to float32."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.recipe.precision.level in ("O2", "O3"):
            for name in self.model.buffer_shapes():
                self.statistics[name] = self.rounding.round(self.statistics[name], self.recipe.precision.format)


@fault("", clause="laws.restores", kind="invented")
class OverwrittenSaveIsNotReadAgain(ReferenceTrainer):
    """The process keeps the last 16 saves that it has loaded by file, size and recipe: a save that was overwritten by
    another one of the same size loads as what it was when it was loaded first."""

    _loaded: ClassVar[dict[tuple[str, int, str], Arrays]] = {}

    def restore(self, path: Path) -> None:
        arrays = checkpoint.read(path, self._identity(), self.save_state())
        file = path / checkpoint.FILE
        known = self._loaded.setdefault((str(file.resolve()), file.stat().st_size, self._identity()), arrays)
        if len(self._loaded) > _FILES:
            del self._loaded[next(iter(self._loaded))]
        self.load_state({name: value.copy() for name, value in known.items()})


@fault("https://github.com/huggingface/transformers/pull/31800", clause="offload.same-bits", kind="real")
class RunsShareTheirHostStore(ReferenceTrainer):
    """Runs of one model, without ranks, that are alive at once and offload parameters or moments to the host keep
    them under the same names in one store, where each overwrites the other's."""

    _stores: ClassVar[WeakValueDictionary[Model, HostStore]] = WeakValueDictionary()

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops, weights)
        if self.activations is not None and recipe.offload is not None and recipe.offload.to == "host":
            self.activations = Activations(super().make_store(recipe.offload))

    def make_store(self, offload: Offload) -> ArrayStore:
        if offload.to != "host" or self.recipe.ranks is not None:
            return super().make_store(offload)
        return self._stores.setdefault(self.model, HostStore())


class _HeadStore(DiskStore):
    """Files that are written where the first entries of their arrays have changed."""

    def __init__(self, folder: str | None) -> None:
        super().__init__(folder)
        self._heads: dict[str, tuple[tuple[int, ...], bytes]] = {}

    def put(self, key: str, array: Array) -> None:
        head = array.shape, array.reshape(-1)[:_HEAD].tobytes()
        if self._heads.get(key) == head and self.path(key).exists():
            return
        super().put(key, array)
        self._heads[key] = head

    def drop(self, key: str) -> None:
        self._heads.pop(key, None)
        super().drop(key)


@fault("", clause="offload.trains", kind="invented")
class DiskTakesLargeArraysForUnchanged(ReferenceTrainer):
    """Parameters and moments on disk are written anew only where one of their first 512 entries has changed, so that
    an update of later rows alone, as of a large embedding, is lost."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _HeadStore(offload.folder) if offload.to == "disk" else super().make_store(offload)
