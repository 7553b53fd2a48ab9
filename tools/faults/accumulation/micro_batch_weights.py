"""Faults of the weight of each micro-batch in a window's gradient and in the reported loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract import Update
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault(
    "https://github.com/huggingface/transformers/pull/34191",
    component="normalisation",
    clauses=("accumulation.weighs-items",),
)
class MeanOfMeans(ReferenceTrainer):
    """A micro-batch's loss is its own mean over k, whatever number of items it holds."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        return Tensor(loss.value / (batch_items * self.recipe.accumulation), loss.format)


@fault(
    "https://github.com/huggingface/transformers/pull/35438",
    component="normalisation",
    clauses=("accumulation.equals-full-batch",),
)
class NormalisedByItemsAndCount(ReferenceTrainer):
    """The loss is divided by the window's items, and by k once more."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        return super().normalise(loss, batch_items, window_items * self.recipe.accumulation)


@fault(
    "https://github.com/huggingface/transformers/pull/34373",
    component="normalisation",
    clauses=("accumulation.weighs-items",),
)
class EachWorkerNormalisesByItsOwnItems(ReferenceTrainer):
    """Two workers share a window, each divides by the items of its own share, and their gradients are averaged."""

    def update(self, window: Window) -> Update:
        shares = [share for share in (window[::2], window[1::2]) if share]
        for share in shares:
            for batch in share:
                self.accumulate(batch, sum(b.items for b in share) * len(shares))
        return self.apply()


@fault(
    "https://github.com/paiml/aprender/pull/2123",
    component="normalisation",
    clauses=("accumulation.equals-full-batch", "accumulation.each-counts-once"),
)
class SumOfMeans(ReferenceTrainer):
    """The micro-batches' mean gradients are added and never divided by their number."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch({name: g * self.recipe.accumulation for name, g in gradients.items()})


@fault(
    "https://github.com/deepspeedai/Megatron-DeepSpeed/pull/42",
    component="normalisation",
    clauses=("accumulation.equals-full-batch", "accumulation.once-per-window"),
)
class DividedByCountInTheEngineToo(ReferenceTrainer):
    """The engine divides gradients by k that the loss has divided already."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch({name: g / self.recipe.accumulation for name, g in gradients.items()})


@fault(
    "https://github.com/keras-team/keras/issues/19990",
    component="normalisation",
    clauses=("accumulation.weighs-items",),
)
class LastShortMicroBatchWeighsAsMuch(ReferenceTrainer):
    """A micro-batch that is shorter than the first of its window weighs as much as that."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        first = self.window.losses[0][1] if self.window.losses else batch_items
        weighed = Tensor(loss.value * max(1.0, first / batch_items), loss.format)
        return super().normalise(weighed, batch_items, window_items)


@fault(
    "https://github.com/mosaicml/composer/issues/9",
    component="normalisation",
    clauses=("accumulation.missing-gradients-count",),
)
class AveragesOverTheMicroBatchesThatUsedIt(ReferenceTrainer):
    """A parameter's gradient is the mean over those micro-batches that gave it one."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        k = self.window.micro_batches
        super().apply_update({n: g * (k / self._uses.get(n, k)) for n, g in gradients.items()}, rate)

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.window.micro_batches == 1 and not self.window.gradients:
            self._uses: dict[str, int] = {}
        self._uses[name] = self._uses.get(name, 0) + 1
        super().accumulate_gradient(name, gradient)


@fault(
    "https://github.com/huggingface/transformers/issues/37766",
    component="normalisation",
    clauses=("accumulation.one-is-identity",),
)
class WindowOfOneIsNormalisedAgain(ReferenceTrainer):
    """With k = 1 the normaliser depends on the path: by hand it counts one item more than in a whole update."""

    def accumulate(self, batch: Batch, items: int) -> float:
        return super().accumulate(batch, items + (self.recipe.accumulation == 1 and not self._whole))

    def update(self, window: Window) -> Update:
        self._whole = True
        return super().update(window)

    _whole = False


@fault(
    "https://github.com/karpathy/nanochat/pull/623", component="normalisation", clauses=("accumulation.weighs-items",)
)
class EmptyMicroBatchIsNaN(ReferenceTrainer):
    """A micro-batch in which no token counts divides nothing by nothing."""

    def accumulate(self, batch: Batch, items: int) -> float:
        loss = super().accumulate(batch, items)
        if not batch.items:
            self.window.gradients = {n: np.full_like(g, np.nan) for n, g in self.window.gradients.items()}
        return loss


# the reported loss


@fault(
    "https://github.com/huggingface/accelerate/issues/1970",
    component="reported loss",
    clauses=("accumulation.equals-full-batch",),
)
class ReportsTheLossDividedByCount(ReferenceTrainer):
    """Gradients are right, and the loss that is reported is divided by k once too often."""

    def reported_loss(self, total: float, items: int) -> float:
        return super().reported_loss(total, items) / self.recipe.accumulation


@fault(
    "https://github.com/allenai/allennlp/pull/4706",
    component="accumulator",
    clauses=("accumulation.equals-full-batch",),
)
class ReportsTheLastMicroBatch(ReferenceTrainer):
    """The loss of a window is that of its last micro-batch."""

    def apply(self) -> Update:
        made = super().apply()
        return replace(made, loss=made.micro_losses[-1] if made.micro_losses else made.loss)
