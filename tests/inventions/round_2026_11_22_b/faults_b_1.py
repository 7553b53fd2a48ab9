"""Faults of checkpoints: what is written, what comes back, and what a refused load leaves."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from fixtures.arrays import Array
from fixtures.recipe import SGD
from frameworks.reference import checkpoint, optimizers
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

Arrays = dict[str, Array]


@fault("https://github.com/atomistic-machine-learning/schnetpack/pull/785", clause="resume.bit-identical", kind="real")
class AverageInWeightsPlace(ReferenceTrainer):
    """A checkpoint that is written right after an evaluation with the average holds the average for the weights."""

    swapped = False

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        self.swapped = True
        return outputs

    def _open(self, items: int) -> None:
        self.swapped = False
        super()._open(items)

    def save_state(self) -> Arrays:
        arrays = super().save_state()
        if self.swapped:
            for name, average in self.averages.items():
                arrays[f"master/{name}"] = self.rounding.round(average, self.master_formats[name])
                arrays[f"value/{name}"] = self.averaged(name)
        return arrays


@fault("https://github.com/lightly-ai/lightly-train/pull/892", clause="master.average-follows-updates", kind="real")
class AverageBeginsAnewAfterLoad(ReferenceTrainer):
    """How many updates the average has seen is not saved: the first one after a load copies the weights."""

    unseen = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.unseen = True

    def move_average(self) -> None:
        steps = self.steps
        if self.unseen:
            self.steps, self.unseen = 1, False
        super().move_average()
        self.steps = steps


@fault("https://github.com/mflux-community/mflux/pull/603", clause="resume.bit-identical", kind="real")
class OlderPartsSurvive(ReferenceTrainer):
    """A save into a folder that holds a checkpoint leaves the older one's arrays that the newer one has no use for."""

    def save(self, path: Path) -> None:
        try:
            older = checkpoint.read(path, self._identity(), {})
        except ValueError:
            older = {}
        checkpoint.write(path, older | self.save_state(), self._identity())


@fault("https://github.com/tenstorrent/tt-metal/pull/53222", clause="resume.bit-identical", kind="real")
class BetaPowersSwappedByLoad(ReferenceTrainer):
    """A load puts the powers of Adam's two betas into each other's place, so that both corrections are wrong."""

    loaded = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.loaded = True

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        optimizer = self.recipe.optimizer
        if not self.loaded or isinstance(optimizer, SGD):
            super().apply_update(gradients, rate)
            return
        right, other = optimizers._correction, {optimizer.beta1: optimizer.beta2, optimizer.beta2: optimizer.beta1}
        with patch.object(optimizers, "_correction", lambda beta, *rest: right(other[beta], *rest)):
            super().apply_update(gradients, rate)


@fault("https://github.com/huggingface/nanotron/pull/256", clause="resume.bit-identical", kind="real")
class LoadedRateBecomesBase(ReferenceTrainer):
    """After a load the schedule takes the decayed rate of that moment for the base rate, and decays it again."""

    loaded_factor = 1.0

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.recipe.schedule is not None:
            self.loaded_factor = self.recipe.schedule.factor(self.schedule)

    def learning_rate(self) -> float:
        return super().learning_rate() * self.loaded_factor


@fault("https://github.com/pytorch/pytorch/pull/138575", clause="resume.bit-identical", kind="real")
class LoadedMomentsSavedAgain(ReferenceTrainer):
    """A run that was loaded once saves the moments that it was loaded with, however far it has trained since."""

    loaded: Arrays | None = None

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.loaded = {name: value for name, value in arrays.items() if name.startswith("slot.")}

    def save_state(self) -> Arrays:
        return super().save_state() | (self.loaded or {})


@fault("https://github.com/koda-dernet/Side-Step/pull/38", clause="resume.restored-is-complete", kind="real")
class AverageAsleepAfterLoad(ReferenceTrainer):
    """After a load, evaluation with the average uses the plain weights until an update has moved the average."""

    asleep = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.asleep = True

    def move_average(self) -> None:
        super().move_average()
        self.asleep = False

    def averaged(self, name: str) -> Array:
        return self.values[name] if self.asleep else super().averaged(name)


@fault("https://github.com/pytorch/pytorch/pull/6031", clause="resume.bit-identical", kind="real")
class MomentsLoadedByPlace(ReferenceTrainer):
    """With two groups, moments are saved group by group and loaded in model order wherever the shapes agree."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.recipe.groups == 1:
            return
        names = list(self.masters)
        pairs = [(n, s) for n, s in zip(names, names[::2] + names[1::2], strict=True)]
        for slot, values in self.slots.items():
            self.slots[slot] = {n: values[s] if values[s].shape == values[n].shape else values[n] for n, s in pairs}


@fault("", clause="resume.refusal-changes-nothing", kind="invented")
class RefusedLoadEmptiesWindow(ReferenceTrainer):
    """A load makes room before it reads the file: one that is then refused has emptied the open window."""

    def restore(self, path: Path) -> None:
        self.empty_accumulator()
        super().restore(path)
