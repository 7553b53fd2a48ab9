"""Faults of the boundaries of an accumulation window: what acts once per window, and where a window ends."""

from __future__ import annotations

import numpy as np

from fixtures.model import Batch
from fixtures.recipe import AdamW
from frameworks.contract import Update
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

# what acts once per window


@fault(
    "https://github.com/keras-team/keras/issues/19990",
    "accumulation.nothing-before-boundary",
    "accumulation.once-per-window",
)
class WeightDecayInsideTheWindow(ReferenceTrainer):
    """Decoupled weight decay shrinks the weights with every micro-batch but the last, whose update has its own."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if isinstance(self.recipe.optimizer, AdamW) and self.window.micro_batches < self.recipe.accumulation:
            factor = 1.0 - self.learning_rate() * self.recipe.optimizer.weight_decay
            self.masters = {name: self.rounding.round(p * factor, "float32") for name, p in self.masters.items()}
            self.sync_masters()


@fault("https://github.com/keras-team/keras/pull/19998", "accumulation.once-per-window")
class ClipsEveryMicroBatch(ReferenceTrainer):
    """Each micro-batch's gradient is clipped, not the window's."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(self.clip(gradients))


@fault("https://github.com/google-research/vision_transformer/issues/286", "accumulation.fresh-dropout")
class OneMaskForTheWholeWindow(ReferenceTrainer):
    """Every micro-batch of a window draws its masks from the same key."""

    def accumulate(self, batch: Batch, items: int) -> float:
        self.draws = 1000 * self.steps
        return super().accumulate(batch, items)


# where a window ends


@fault(
    "https://github.com/huggingface/accelerate/issues/1847",
    "accumulation.nothing-before-boundary",
    "accumulation.remainder",
)
class EveryMicroBatchSyncsAfterTheFirstEpoch(ReferenceTrainer):
    """Once the end of the data was seen, every micro-batch makes an update of its own."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if self.steps and self.scaler is None:
            self.apply_update(dict(self.window.gradients), self.learning_rate())
            self.sync_masters()
            self.window.gradients.clear()


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/21808", "accumulation.remainder")
class ShortEpochIsNotAccumulated(ReferenceTrainer):
    """When an epoch is shorter than a window, only the last of its micro-batches is applied."""

    def apply(self) -> Update:
        if 1 < self.window.micro_batches < self.recipe.accumulation:
            self.window.gradients = {name: g - self._before[name] for name, g in self.window.gradients.items()}
        return super().apply()

    def take_micro_batch(self, gradients: Arrays) -> None:
        self._before = {name: self.window.gradients.get(name, np.zeros_like(g)) for name, g in gradients.items()}
        super().take_micro_batch(gradients)


@fault("https://github.com/KellerJordan/Muon/issues/54", "accumulation.empty-window")
class EmptyWindowIsAnUpdate(ReferenceTrainer):
    """An update that is asked for before any backward pass takes the missing gradients for zeros."""

    def apply(self) -> Update:
        if not self.window.micro_batches:
            self.window_takes({name: np.zeros_like(value) for name, value in self.masters.items()}, 1)
        return super().apply()


@fault("https://github.com/Haian-Jin/LVSM/pull/19", "accumulation.empty-window", raises=True)
class EmptyWindowStaysUnscaled(ReferenceTrainer):
    """An empty window is refused after it was marked as unscaled, and the next one is refused for the mark."""

    def apply(self) -> Update:
        if not self.window.micro_batches:
            self.unscale_gradients()
        elif self.window.unscaled and self.scaler is not None:
            raise RuntimeError("this window's gradients have already been unscaled")
        return super().apply()


@fault("https://github.com/huggingface/transformers/pull/614", "accumulation.groups-change-nothing")
class ClipsEveryGroupByItself(ReferenceTrainer):
    """Each group of parameters is clipped by its own norm instead of the norm of all."""

    def clip(self, gradients: Arrays) -> Arrays:
        groups = [list(gradients)[place :: self.recipe.groups] for place in range(self.recipe.groups)]
        clip = super().clip
        return {n: g for group in groups for n, g in clip({n: gradients[n] for n in group}).items()}
