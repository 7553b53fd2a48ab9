"""Faults of what a checkpoint contains, and of what a load brings back of it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.core import checkpoint
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/vision/pull/4923", "resume.scaler-state")
class GrowthCounterIsNotSaved(ReferenceTrainer):
    """The scale is saved, and the counter of good updates since its last change is not."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.scaler is not None:
            self.scaler = self.scaler.at(self.scaler.scale, 0)


@fault("https://github.com/PaddlePaddle/Paddle/pull/39121", "resume.bit-identical")
class MastersAreNotSaved(ReferenceTrainer):
    """Float32 masters are made again from the low-precision weights."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.masters = dict(self.values)


@fault("https://github.com/NVlabs/stylegan2-ada-pytorch/issues/108", "resume.bit-identical")
class SecondOptimizerIsNotLoaded(ReferenceTrainer):
    """A load brings back the moments of the first optimizer only."""

    def load_state(self, arrays: Arrays) -> None:
        kept = {slot: dict(values) for slot, values in self.slots.items()}
        super().load_state(arrays)
        for slot, values in self.slots.items():
            values.update({name: kept[slot][name] for name in values if self.optimizer_of(name)})


@fault("https://github.com/EleutherAI/gpt-neox/pull/308", "resume.bit-identical")
class PositionIgnoresAccumulation(ReferenceTrainer):
    """The counter of updates that a load sets is k times too small."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.steps //= self.recipe.accumulation


@fault("https://github.com/AI-Hypercomputer/maxtext/issues/276", "resume.random-state")
class RandomStateFollowsUpdates(ReferenceTrainer):
    """A load puts the random stream where one draw an update would have left it, whatever the model drew."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.draws = self.steps


@fault("https://github.com/unit8co/darts/issues/2463", "resume.bit-identical")
class PartOfTheRunStaysInTheProcess(ReferenceTrainer):
    """The counters of a checkpoint are kept in the process that saved it, not in the file."""

    kept: ClassVar[dict[str, Array]] = {}

    def save(self, path: Path) -> None:
        super().save(path)
        self.kept[str(path)] = self.save_state()["counters"]

    def restore(self, path: Path) -> None:
        own = checkpoint.read(path, self._identity(), self.save_state())
        self.load_state(own | {"counters": self.kept.get(str(path), np.zeros(6, np.int64))})


@fault("https://github.com/google/flax/pull/1120", "resume.bit-identical")
class OlderSaveStays(ReferenceTrainer):
    """A save into a folder that has one of the same run is left out without an error."""

    def save(self, path: Path) -> None:
        try:
            checkpoint.read(path, self._identity(), self.save_state())
        except ValueError:
            super().save(path)


@fault("https://github.com/pytorch/pytorch/issues/140898", "resume.bit-identical")
class OpenWindowKeepsTheMoments(ReferenceTrainer):
    """A load into a run with gradients leaves the optimizer's state out."""

    def load_state(self, arrays: Arrays) -> None:
        former, open_window = {slot: dict(held) for slot, held in self.slots.items()}, bool(self.window.gradients)
        super().load_state(arrays)
        for slot, held in former.items() if open_window else ():
            self.slots[slot].update(held)


@fault("https://github.com/Nerogar/OneTrainer/pull/1465", "resume.mid-window")
class LossOfTheOpenWindowIsLost(ReferenceTrainer):
    """Gradients of the open window come back; its losses do not, so the window reports the rest of it alone."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.losses = []


@fault("https://github.com/facebookresearch/fairseq2/issues/1346", "resume.mid-window")
class OpenWindowCannotBeUnscaled(ReferenceTrainer):
    """Gradients of an open window that was loaded are applied as they are, scaled."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.unscaled = bool(self.window.gradients)
