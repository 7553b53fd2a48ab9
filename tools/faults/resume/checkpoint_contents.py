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

# state of the run


@fault(
    "https://github.com/huggingface/transformers/pull/11663",
    component="checkpoint",
    clauses=("resume.scaler-state", "resume.bit-identical"),
)
class ScalerIsNotSaved(ReferenceTrainer):
    """The loss scaler begins again after a load."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.scaler = self.settings


@fault("https://github.com/pytorch/vision/pull/4923", component="checkpoint", clauses=("resume.scaler-state",))
class GrowthCounterIsNotSaved(ReferenceTrainer):
    """The scale is saved, and the counter of good updates since its last change is not."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.scaler is not None:
            self.scaler = self.scaler.at(self.scaler.scale, 0)


@fault("https://github.com/PaddlePaddle/Paddle/pull/39121", component="checkpoint", clauses=("resume.bit-identical",))
class MastersAreNotSaved(ReferenceTrainer):
    """Float32 masters are made again from the low-precision weights."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.masters = dict(self.values)


@fault(
    "https://github.com/NVIDIA/apex/issues/480",
    component="checkpoint",
    clauses=("resume.bit-identical", "resume.load-has-no-side-effects"),
)
class OldMastersStay(ReferenceTrainer):
    """A load gives the model its weights, and the optimizer goes on with the masters that it had."""

    def load_state(self, arrays: Arrays) -> None:
        former = dict(self.masters)
        super().load_state(arrays)
        self.masters = former


@fault("https://github.com/TrenTorch/TrenTorch/pull/187", component="checkpoint", clauses=("resume.bit-identical",))
class MomentsAreNotSaved(ReferenceTrainer):
    """The optimizer's moments are zero after a load."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.slots = {slot: {n: np.zeros_like(v) for n, v in held.items()} for slot, held in self.slots.items()}


@fault(
    "https://github.com/NVlabs/stylegan2-ada-pytorch/issues/108",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class SecondOptimizerIsNotLoaded(ReferenceTrainer):
    """A load brings back the moments of the first optimizer only."""

    def load_state(self, arrays: Arrays) -> None:
        kept = {slot: dict(values) for slot, values in self.slots.items()}
        super().load_state(arrays)
        for slot, values in self.slots.items():
            values.update({name: kept[slot][name] for name in values if self.optimizer_of(name)})


@fault("https://github.com/deepspeedai/DeepSpeed/pull/564", component="checkpoint", clauses=("resume.bit-identical",))
class BiasCorrectionBeginsAgain(ReferenceTrainer):
    """Adam's counter of updates is not saved with its moments."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.counts = dict.fromkeys(self.counts, 0)


@fault("https://github.com/NVIDIA/apex/issues/180", component="checkpoint", clauses=("resume.bit-identical",))
class MomentsAreSavedInFloat16(ReferenceTrainer):
    """A checkpoint holds the optimizer's moments in float16."""

    def save_state(self) -> Arrays:
        saved = super().save_state()
        return {n: v.astype(np.float16).astype(v.dtype) if n.startswith("slot.") else v for n, v in saved.items()}


@fault(
    "https://github.com/lightly-ai/lightly-train/pull/301", component="checkpoint", clauses=("resume.bit-identical",)
)
class ScheduleBeginsAgain(ReferenceTrainer):
    """The learning-rate schedule is not part of a checkpoint."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.schedule = 0


@fault("https://github.com/EleutherAI/gpt-neox/pull/308", component="checkpoint", clauses=("resume.bit-identical",))
class PositionIgnoresAccumulation(ReferenceTrainer):
    """The counter of updates that a load sets is k times too small."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.steps //= self.recipe.accumulation


@fault(
    "https://github.com/vllm-project/speculators/issues/1027", component="checkpoint", clauses=("resume.random-state",)
)
class RandomStateIsNotSaved(ReferenceTrainer):
    """Dropout begins its stream again after a load."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.draws = 0


@fault(
    "https://github.com/AI-Hypercomputer/maxtext/issues/276", component="checkpoint", clauses=("resume.random-state",)
)
class RandomStateFollowsUpdates(ReferenceTrainer):
    """A load puts the random stream where one draw an update would have left it, whatever the model drew."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.draws = self.steps


@fault("https://github.com/NVIDIA/apex/issues/480", component="checkpoint", clauses=("resume.random-state",))
class RunningStatisticsAreNotSaved(ReferenceTrainer):
    """Batch norm's running mean and variance begin again after a load."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.statistics = {n: v.astype(np.float64) for n, v in self.model.buffers().items()}


@fault("https://github.com/unit8co/darts/issues/2463", component="checkpoint", clauses=("resume.bit-identical",))
class PartOfTheRunStaysInTheProcess(ReferenceTrainer):
    """The counters of a checkpoint are kept in the process that saved it, not in the file."""

    kept: ClassVar[dict[str, Array]] = {}

    def save(self, path: Path) -> None:
        super().save(path)
        self.kept[str(path)] = self.save_state()["counters"]

    def restore(self, path: Path) -> None:
        own = checkpoint.read(path, self._identity(), self.save_state())
        self.load_state(own | {"counters": self.kept.get(str(path), np.zeros(6, np.int64))})


@fault("https://github.com/google/flax/pull/1120", component="checkpoint", clauses=("resume.bit-identical",))
class OlderSaveStays(ReferenceTrainer):
    """A save into a folder that has one of the same run is left out without an error."""

    def save(self, path: Path) -> None:
        try:
            checkpoint.read(path, self._identity(), self.save_state())
        except ValueError:
            super().save(path)


@fault("https://github.com/pytorch/pytorch/issues/140898", component="checkpoint", clauses=("resume.bit-identical",))
class OpenWindowKeepsTheMoments(ReferenceTrainer):
    """A load into a run with gradients leaves the optimizer's state out."""

    def load_state(self, arrays: Arrays) -> None:
        former, open_window = {slot: dict(held) for slot, held in self.slots.items()}, bool(self.window.gradients)
        super().load_state(arrays)
        for slot, held in former.items() if open_window else ():
            self.slots[slot].update(held)


# an open window


@fault("https://github.com/huggingface/transformers/issues/22143", component="window", clauses=("resume.mid-window",))
class OpenWindowIsLost(ReferenceTrainer):
    """What the open window has gathered is not saved, and the rest of the window is applied as if it were whole."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.empty_accumulator()


@fault("https://github.com/Nerogar/OneTrainer/pull/1465", component="window", clauses=("resume.mid-window",))
class LossOfTheOpenWindowIsLost(ReferenceTrainer):
    """Gradients of the open window come back; its losses do not, so the window reports the rest of it alone."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.losses = []


@fault("https://github.com/huggingface/diffusers/issues/3467", component="window", clauses=("resume.mid-window",))
class OpenWindowIsWeighedAsAWhole(ReferenceTrainer):
    """A load forgets how much of the window is still to come, and weighs what was gathered as a whole window."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        share = self.recipe.accumulation / max(1, self.window.micro_batches)
        self.window.gradients = {n: g * share for n, g in self.window.gradients.items()}


@fault("https://github.com/facebookresearch/fairseq2/issues/1346", component="load", clauses=("resume.mid-window",))
class OpenWindowCannotBeUnscaled(ReferenceTrainer):
    """Gradients of an open window that was loaded are applied as they are, scaled."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.unscaled = bool(self.window.gradients)
