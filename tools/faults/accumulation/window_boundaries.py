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
    component="optimizer",
    clauses=("accumulation.nothing-before-boundary", "accumulation.once-per-window"),
)
class WeightDecayInsideTheWindow(ReferenceTrainer):
    """Decoupled weight decay shrinks the weights with every micro-batch but the last, whose update has its own."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if isinstance(self.recipe.optimizer, AdamW) and self.window.micro_batches < self.recipe.accumulation:
            factor = 1.0 - self.learning_rate() * self.recipe.optimizer.weight_decay
            self.masters = {name: self.rounding.round(p * factor, "float32") for name, p in self.masters.items()}
            self.sync_masters()


@fault(
    "https://github.com/keras-team/keras/pull/19998", component="clipping", clauses=("accumulation.once-per-window",)
)
class ClipsEveryMicroBatch(ReferenceTrainer):
    """Each micro-batch's gradient is clipped, not the window's."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(self.clip(gradients))


@fault(
    "https://github.com/keras-team/keras/issues/19990",
    component="optimizer",
    clauses=("accumulation.nothing-before-boundary", "accumulation.once-per-window"),
)
class AdamCountsMicroBatches(ReferenceTrainer):
    """Adam's counter of updates, which its bias correction reads, counts micro-batches."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if self.window.micro_batches > 1:
            self.counts = {name: count + 1 for name, count in self.counts.items()}


@fault(
    "https://github.com/huggingface/accelerate/issues/963",
    component="schedule",
    clauses=("accumulation.nothing-before-boundary", "accumulation.once-per-window"),
)
class ScheduleCountsMicroBatches(ReferenceTrainer):
    """The learning-rate schedule advances with every micro-batch."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if self.window.micro_batches > 1:
            self.advance_schedule()


@fault(
    "https://github.com/AI-Hypercomputer/maxtext/pull/3452",
    component="schedule",
    clauses=("accumulation.once-per-window",),
)
class ScheduleReadsMicroBatches(ReferenceTrainer):
    """The counter of updates is right, and the schedule is asked for its value at k times that."""

    def learning_rate(self) -> float:
        factor = (
            1.0
            if self.recipe.schedule is None
            else self.recipe.schedule.factor(self.schedule * self.recipe.accumulation)
        )
        return self.recipe.optimizer.learning_rate * factor


@fault(
    "https://github.com/google-research/vision_transformer/issues/286",
    component="random stream",
    clauses=("accumulation.fresh-dropout",),
)
class OneMaskForTheWholeWindow(ReferenceTrainer):
    """Every micro-batch of a window draws its masks from the same key."""

    def accumulate(self, batch: Batch, items: int) -> float:
        self.draws = 1000 * self.steps
        return super().accumulate(batch, items)


# where a window ends


@fault(
    "https://github.com/huggingface/accelerate/issues/1847",
    component="window",
    clauses=("accumulation.nothing-before-boundary", "accumulation.remainder"),
)
class EveryMicroBatchSyncsAfterTheFirstEpoch(ReferenceTrainer):
    """Once the end of the data was seen, every micro-batch makes an update of its own."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if self.steps and self.scaler is None:
            self.apply_update(dict(self.window.gradients), self.learning_rate())
            self.sync_masters()
            self.window.gradients.clear()


@fault("https://github.com/hpcaitech/ColossalAI/issues/1028", component="window", clauses=("accumulation.remainder",))
class TailIsNeverApplied(ReferenceTrainer):
    """An incomplete last window is thrown away, though the declared rule flushes it."""

    def apply(self) -> Update:
        if self.window.micro_batches < self.recipe.accumulation:
            self.window.gradients.clear()
        return super().apply()


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/19987",
    component="window",
    clauses=("accumulation.remainder",),
)
class TailIsCarriedOver(ReferenceTrainer):
    """An incomplete last window waits for the next epoch, though the declared rule flushes it."""

    def window_ended(self) -> bool:
        return self.window.micro_batches >= self.recipe.accumulation


@fault("https://github.com/TrenTorch/TrenTorch/pull/187", component="window", clauses=("accumulation.remainder",))
class FlushIsDividedByAWholeWindow(ReferenceTrainer):
    """A window that is flushed is divided by k, not by the number of micro-batches that it holds."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        share = min(1.0, self.window.micro_batches / self.recipe.accumulation)
        super().apply_update({name: g * share for name, g in gradients.items()}, rate)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/21808",
    component="window",
    clauses=("accumulation.remainder",),
)
class ShortEpochIsNotAccumulated(ReferenceTrainer):
    """When an epoch is shorter than a window, only the last of its micro-batches is applied."""

    def apply(self) -> Update:
        if 1 < self.window.micro_batches < self.recipe.accumulation:
            self.window.gradients = {name: g - self._before[name] for name, g in self.window.gradients.items()}
        return super().apply()

    def take_micro_batch(self, gradients: Arrays) -> None:
        self._before = {name: self.window.gradients.get(name, np.zeros_like(g)) for name, g in gradients.items()}
        super().take_micro_batch(gradients)


@fault("https://github.com/KellerJordan/Muon/issues/54", component="window", clauses=("accumulation.empty-window",))
class EmptyWindowIsAnUpdate(ReferenceTrainer):
    """An update that is asked for before any backward pass takes the missing gradients for zeros."""

    def apply(self) -> Update:
        if not self.window.micro_batches:
            self.window_takes({name: np.zeros_like(value) for name, value in self.masters.items()}, 1)
        return super().apply()


@fault(
    "https://github.com/Haian-Jin/LVSM/pull/19", component="window", clauses=("accumulation.empty-window",), raises=True
)
class EmptyWindowStaysUnscaled(ReferenceTrainer):
    """An empty window is refused after it was marked as unscaled, and the next one is refused for the mark."""

    def apply(self) -> Update:
        if not self.window.micro_batches:
            self.unscale_gradients()
        elif self.window.unscaled and self.scaler is not None:
            raise RuntimeError("this window's gradients have already been unscaled")
        return super().apply()


# parameter groups


@fault(
    "https://github.com/deepspeedai/DeepSpeed/issues/7819",
    component="optimizer",
    clauses=("accumulation.groups-change-nothing",),
)
class CounterAdvancesWithEveryGroup(ReferenceTrainer):
    """The counter behind Adam's bias correction advances with every group of one update."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        for name in list(self.masters)[1 :: self.recipe.groups] if self.recipe.groups > 1 else ():
            self.counts[name] += 1
        super().apply_update(gradients, rate)


@fault(
    "https://github.com/huggingface/transformers/pull/614",
    component="clipping",
    clauses=("accumulation.groups-change-nothing",),
)
class ClipsEveryGroupByItself(ReferenceTrainer):
    """Each group of parameters is clipped by its own norm instead of the norm of all."""

    def clip(self, gradients: Arrays) -> Arrays:
        groups = [list(gradients)[place :: self.recipe.groups] for place in range(self.recipe.groups)]
        clip = super().clip
        return {n: g for group in groups for n, g in clip({n: gradients[n] for n in group}).items()}
