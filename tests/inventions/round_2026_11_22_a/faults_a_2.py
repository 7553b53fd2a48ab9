"""Faults of weight averages, and of saving, loading and going on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from frameworks.reference import checkpoint
from frameworks.reference.decisions import Arrays
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/m2lines/Samudra/issues/282", clause="resume.bit-identical", kind="real")
class AverageRestartsAfterLoad(ReferenceTrainer):
    """The number of updates that the average has taken in is not restored: it comes back whole, and the first update
    after the load replaces it with a copy of the weights."""

    _anew = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._anew = True

    def move_average(self) -> None:
        if self._anew and self.averages:
            self.averages = dict(self.masters)
        else:
            super().move_average()
        self._anew = False


@fault("https://github.com/lucidrains/ema-pytorch/issues/8", clause="master.average-is-evaluated", kind="real")
class AverageWithFirstStatistics(ReferenceTrainer):
    """The averaged model never receives batch norm's buffers: it is evaluated with the running statistics of an
    untrained model."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        kept = self.statistics
        self.statistics = {name: value.astype(np.float64) for name, value in self.model.buffers().items()}
        try:
            return super().predict_averaged(inputs)
        finally:
            self.statistics = kept


@fault(
    "https://github.com/atomistic-machine-learning/schnetpack/pull/785",
    clause="master.masters-survive-load",
    kind="real",
)
class CheckpointOfSwappedWeights(ReferenceTrainer):
    """After an evaluation with the average the weights are swapped back only when training goes on: a checkpoint that
    is written in between holds the average in their place."""

    _swapped = False

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        self._swapped = True
        return outputs

    def take_micro_batch(self, gradients: Arrays) -> None:
        self._swapped = False
        super().take_micro_batch(gradients)

    def save_state(self) -> Arrays:
        arrays = super().save_state()
        for name in self.averages if self._swapped else ():
            arrays[f"value/{name}"] = self.averaged(name).copy()
            arrays[f"master/{name}"] = self.rounding.round(self.averages[name], self.master_formats[name]).copy()
        return arrays


@fault("https://github.com/THUDM/slime/pull/1547", clause="resume.load-has-no-side-effects", kind="real")
class LoadStepsTheSchedule(ReferenceTrainer):
    """A load steps the schedule forward by the saved number instead of setting it, so that a run which has made updates
    of its own goes on at a later place."""

    def load_state(self, arrays: Arrays) -> None:
        before = self.schedule
        super().load_state(arrays)
        self.schedule += before


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/17025", clause="resume.bit-identical", kind="real")
class MomentsInTextOrder(ReferenceTrainer):
    """Moments are restored by position, and the saved ones are ordered by the layer's number as text: from the eleventh
    layer on, layers of the same shape get each other's."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        names = list(self.masters)
        pairs = list(zip(names, sorted(names, key=lambda name: name.partition(".")[0]), strict=True))
        self.slots = {
            slot: {name: held[other if held[other].shape == held[name].shape else name] for name, other in pairs}
            for slot, held in self.slots.items()
        }


@fault("", clause="resume.bit-identical", kind="invented")
class LoadLevelsCounts(ReferenceTrainer):
    """One count of updates is kept for all parameters in a checkpoint: after a load, one that had no gradient in some
    updates has its moments corrected by the count of the others."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.counts = dict.fromkeys(self.counts, max(self.counts.values()))


@fault("", clause="resume.mid-window", kind="invented")
class SavedOncePerUpdate(ReferenceTrainer):
    """A second save into the same folder before the next applied update is left out, whatever has been accumulated or
    skipped since the first."""

    _saved_at: tuple[Path, int] | None = None

    def save(self, path: Path) -> None:
        if self._saved_at == (path, self.steps) and (path / checkpoint.FILE).exists():
            return
        super().save(path)
        self._saved_at = (path, self.steps)


@fault("", clause="resume.restored-is-complete", kind="invented")
class LoadedWindowLooksEmpty(ReferenceTrainer):
    """A load inside a window brings the gradients back, not how many micro-batches they are from: to end the window
    right after it is refused as if nothing had been accumulated."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.micro_batches = 0


@fault("", clause="autocast.promotes-to-widest", kind="invented")
class AverageNarrowsHeads(ReferenceTrainer):
    """The average of a float64 head's weights is kept in float32."""

    def average_format(self, name: str) -> str:
        return "float32"

    def move_average(self) -> None:
        super().move_average()
        self.averages = {name: self.rounding.round(value, "float32") for name, value in self.averages.items()}


@fault("", clause="master.average-follows-updates", kind="invented")
class AverageOfUpdatedOnly(ReferenceTrainer):
    """An update moves the averages of the parameters that it has gradients for; that of another one stays behind the
    weights which an earlier update left."""

    def move_average(self) -> None:
        before = dict(self.averages)
        super().move_average()
        for name in before.keys() - self.window.gradients.keys():
            self.averages[name] = before[name]


@fault("", clause="accumulation.evaluation-changes-nothing", kind="invented")
class EvaluationRoundsAverage(ReferenceTrainer):
    """To evaluate with the average at O2 leaves it rounded to the model's format, and it goes on from there."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        self.averages = {name: self.averaged(name) for name in self.averages}
        return outputs
