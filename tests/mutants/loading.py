"""Faults of saving and loading: what they do besides, and what they do not refuse."""

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
    clauses=("resume.mid-window",),
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
    clauses=("resume.other-format-is-refused",),
)
class FormatsAreNotRecorded(ReferenceTrainer):
    """A checkpoint does not say in which formats it is to be read."""

    def _identity(self) -> str:
        return f"{self.model.name} {self.model.layers} {self.model.sample} {self.recipe.but(precision=Precision())}"


@fault(
    "https://github.com/ScrollPrize/villa/pull/1475",
    component="load",
    clauses=("resume.truncated-file", "resume.altered-file"),
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
    clauses=("resume.truncated-file", "resume.refusal-changes-nothing"),
)
class RefusalComesTooLate(ReferenceTrainer):
    """The optimizer is reset before it is known whether the file can be read."""

    def restore(self, path: Path) -> None:
        self.counts = dict.fromkeys(self.counts, 0)
        super().restore(path)


@fault(
    "https://github.com/unit8co/darts/issues/2463",
    component="checkpoint",
    clauses=("resume.bit-identical",),
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
