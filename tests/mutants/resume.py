"""Faults of saving and loading: what a checkpoint leaves out, and what saving or loading does besides."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import Precision
from frameworks.reference import checkpoint, scope
from frameworks.reference.decisions import Arrays
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault

# what a checkpoint leaves out


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


@fault(
    "https://github.com/pytorch/vision/pull/4923",
    component="checkpoint",
    clauses=("resume.scaler-state",),
)
class GrowthCounterIsNotSaved(ReferenceTrainer):
    """The scale is saved, and the counter of good updates since its last change is not."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.scaler is not None:
            self.scaler = self.scaler.at(self.scaler.scale, 0)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/39121",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
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


@fault(
    "https://github.com/TrenTorch/TrenTorch/pull/187",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class MomentsAreNotSaved(ReferenceTrainer):
    """The optimizer's moments are zero after a load."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.slots = {slot: {n: np.zeros_like(v) for n, v in held.items()} for slot, held in self.slots.items()}


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/564",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class BiasCorrectionBeginsAgain(ReferenceTrainer):
    """Adam's counter of updates is not saved with its moments."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.counts = dict.fromkeys(self.counts, 0)


@fault(
    "https://github.com/NVIDIA/apex/issues/180",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class MomentsAreSavedInFloat16(ReferenceTrainer):
    """A checkpoint holds the optimizer's moments in float16."""

    def save_state(self) -> Arrays:
        saved = super().save_state()
        return {n: v.astype(np.float16).astype(v.dtype) if n.startswith("slot.") else v for n, v in saved.items()}


@fault(
    "https://github.com/lightly-ai/lightly-train/pull/301",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class ScheduleBeginsAgain(ReferenceTrainer):
    """The learning-rate schedule is not part of a checkpoint."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.schedule = 0


@fault(
    "https://github.com/EleutherAI/gpt-neox/pull/308",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class PositionIgnoresAccumulation(ReferenceTrainer):
    """The counter of updates that a load sets is k times too small."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.steps //= self.recipe.accumulation


@fault(
    "https://github.com/vllm-project/speculators/issues/1027",
    component="checkpoint",
    clauses=("resume.random-state",),
)
class RandomStateIsNotSaved(ReferenceTrainer):
    """Dropout begins its stream again after a load."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.draws = 0


@fault(
    "https://github.com/AI-Hypercomputer/maxtext/issues/276",
    component="checkpoint",
    clauses=("resume.random-state",),
)
class RandomStateFollowsUpdates(ReferenceTrainer):
    """A load puts the random stream where one draw an update would have left it, whatever the model drew."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.draws = self.steps


@fault(
    "https://github.com/NVIDIA/apex/issues/480",
    component="checkpoint",
    clauses=("resume.random-state",),
)
class RunningStatisticsAreNotSaved(ReferenceTrainer):
    """Batch norm's running mean and variance begin again after a load."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.statistics = {n: v.astype(np.float64) for n, v in self.model.buffers().items()}


# an open window


@fault(
    "https://github.com/huggingface/transformers/issues/22143",
    component="window",
    clauses=("resume.mid-window",),
)
class OpenWindowIsLost(ReferenceTrainer):
    """What the open window has gathered is not saved, and the rest of the window is applied as if it were whole."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.empty_accumulator()


@fault(
    "https://github.com/Nerogar/OneTrainer/pull/1465",
    component="window",
    clauses=("resume.mid-window",),
)
class LossOfTheOpenWindowIsLost(ReferenceTrainer):
    """Gradients of the open window come back; its losses do not, so the window reports the rest of it alone."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.losses = []


@fault(
    "https://github.com/huggingface/diffusers/issues/3467",
    component="window",
    clauses=("resume.mid-window",),
)
class WindowBeginsAtTheRightPlaceWithTheWrongCount(ReferenceTrainer):
    """A load counts the open window's micro-batches from zero, so that its items are those of the rest."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        share = self.recipe.accumulation / max(1, self.recipe.accumulation - self.window.micro_batches)
        self.window.gradients = {n: g * share for n, g in self.window.gradients.items()}


# side effects


@fault(
    "https://github.com/huggingface/accelerate/issues/4289",
    component="load",
    clauses=("resume.load-has-no-side-effects", "resume.scaler-state"),
)
class LoadMovesTheScale(ReferenceTrainer):
    """Loading takes a dummy step of the optimizer, which the scaler counts."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.scaler is not None:
            self.scaler = self.next_scale(self.scaler, True)


@fault(
    "https://github.com/huggingface/accelerate/issues/4289",
    component="load",
    clauses=("resume.load-has-no-side-effects",),
)
class LoadLeavesItsPrecisionScopeOpen(ReferenceTrainer):
    """The precision scope that a load opens for a warm-up forward pass stays open for the process."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        scope.enter(scope.Scope(Precision("O1", "bfloat16")))


@fault(
    "https://github.com/huggingface/optimum-graphcore/pull/97",
    component="save",
    clauses=("resume.save-has-no-side-effects",),
)
class SaveDrawsRandomNumbers(ReferenceTrainer):
    """Saving moves the random stream, so a run depends on how often it is saved."""

    def save(self, path: Path) -> None:
        super().save(path)
        self.draws += 1


@fault(
    "https://github.com/the-database/traiNNer-redux/pull/96",
    component="save",
    clauses=("resume.save-has-no-side-effects",),
)
class SaveDropsTheOpenWindow(ReferenceTrainer):
    """Saving empties the accumulator of the run that goes on."""

    def save(self, path: Path) -> None:
        super().save(path)
        self.window.gradients.clear()


@fault(
    "https://github.com/facebookresearch/fairseq2/issues/1346",
    component="load",
    clauses=("resume.restored-is-complete",),
    raises=True,
)
class ScaleIsMissingUntilTheFirstLoss(ReferenceTrainer):
    """A restored scaler has no scale before it has scaled a loss."""

    _restored = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._restored = True

    def scale_loss(self, loss: Tensor) -> Tensor:
        self._restored = False
        return super().scale_loss(loss)

    def scaler_state(self) -> Arrays:
        if self._restored:
            raise AttributeError("the scaler has no scale yet")
        return super().scaler_state()


@fault(
    "https://github.com/facebookresearch/fairseq2/issues/1346",
    component="load",
    clauses=("resume.restored-is-complete",),
)
class OpenWindowCannotBeUnscaled(ReferenceTrainer):
    """Gradients of an open window that was loaded are applied as they are, scaled."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.unscaled = bool(self.window.gradients)


# refusals


@fault(
    "https://github.com/mosaicml/composer/pull/1376",
    component="load",
    clauses=("resume.unclaimed-is-refused",),
)
class DropsWhatHasNoReceiver(ReferenceTrainer):
    """A saved component that the run has no place for is left out in silence, and one that is not saved stays."""

    def restore(self, path: Path) -> None:
        own = self.save_state()
        saved = checkpoint.read(path, "", {})
        self.load_state({n: saved[n] if n in saved and saved[n].shape == v.shape else v for n, v in own.items()})

    def _identity(self) -> str:
        return ""


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1647",
    component="load",
    clauses=("resume.unclaimed-is-refused",),
)
class FormatsAreNotRecorded(ReferenceTrainer):
    """A checkpoint does not say in which formats it is to be read."""

    def _identity(self) -> str:
        return f"{self.model.name} {self.model.layers} {self.recipe.but(precision=Precision())}"


@fault(
    "https://github.com/ScrollPrize/villa/pull/1475",
    component="load",
    clauses=("resume.truncated-file",),
)
class DamageIsIgnored(ReferenceTrainer):
    """A file that cannot be read is taken for no file, and the run goes on with what it has."""

    def restore(self, path: Path) -> None:
        try:
            super().restore(path)
        except ValueError:
            return


@fault(
    "https://github.com/ScrollPrize/villa/pull/1475",
    component="load",
    clauses=("resume.truncated-file",),
)
class RefusalComesTooLate(ReferenceTrainer):
    """The optimizer is reset before it is known whether the file can be read."""

    def restore(self, path: Path) -> None:
        self.counts = dict.fromkeys(self.counts, 0)
        super().restore(path)


@fault(
    "https://github.com/unit8co/darts/issues/2463",
    component="checkpoint",
    clauses=("resume.new-process",),
)
class PartOfTheRunStaysInTheProcess(ReferenceTrainer):
    """The counters of a checkpoint are kept in the process that saved it, not in the file."""

    kept: ClassVar[dict[str, Array]] = {}

    def save(self, path: Path) -> None:
        super().save(path)
        self.kept[str(path)] = self.save_state()["counters"]

    def restore(self, path: Path) -> None:
        own = checkpoint.read(path, self._identity(), self.save_state())
        self.load_state(own | {"counters": self.kept.get(str(path), np.zeros(6, np.int64))})
