"""Faults of the weight of each micro-batch in a window's gradient and in the reported loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fixtures.model import Batch, Window
from frameworks.contract import Update
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/huggingface/transformers/pull/34191", "accumulation.weighs-items")
class MeanOfMeans(ReferenceTrainer):
    """A micro-batch's loss is its own mean over k, whatever number of items it holds."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        return Tensor(loss.value / (batch_items * self.recipe.accumulation), loss.format)


@fault("https://github.com/huggingface/transformers/pull/34373", "accumulation.weighs-items")
class EachWorkerNormalisesByItsOwnItems(ReferenceTrainer):
    """Two workers share a window, each divides by the items of its own share, and their gradients are averaged."""

    def update(self, window: Window) -> Update:
        shares = [share for share in (window[::2], window[1::2]) if share]
        for share in shares:
            for batch in share:
                self.accumulate(batch, sum(b.items for b in share) * len(shares))
        return self.apply()


@fault("https://github.com/huggingface/transformers/issues/37766", "accumulation.one-is-identity")
class WindowOfOneIsNormalisedAgain(ReferenceTrainer):
    """With k = 1 the normaliser depends on the path: by hand it counts one item more than in a whole update."""

    def accumulate(self, batch: Batch, items: int) -> float:
        return super().accumulate(batch, items + (self.recipe.accumulation == 1 and not self._whole))

    def update(self, window: Window) -> Update:
        self._whole = True
        return super().update(window)

    _whole = False


@fault("https://github.com/karpathy/nanochat/pull/623", "accumulation.weighs-items")
class EmptyMicroBatchIsNaN(ReferenceTrainer):
    """A micro-batch in which no token counts divides nothing by nothing."""

    def accumulate(self, batch: Batch, items: int) -> float:
        loss = super().accumulate(batch, items)
        if not batch.items:
            self.window.gradients = {n: np.full_like(g, np.nan) for n, g in self.window.gradients.items()}
        return loss


@fault("https://github.com/allenai/allennlp/pull/4706", "accumulation.equals-full-batch")
class ReportsTheLastMicroBatch(ReferenceTrainer):
    """The loss of a window is that of its last micro-batch."""

    def apply(self) -> Update:
        made = super().apply()
        return replace(made, loss=made.micro_losses[-1] if made.micro_losses else made.loss)
