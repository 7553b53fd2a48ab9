"""Faults of windows: the accumulator, boundaries, and weights of micro-batches."""

from dataclasses import replace
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from fixtures.recipe import AdamW
from frameworks.contract import Update
from frameworks.reference.core.tape import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/deepspeedai/DeepSpeed/pull/5154", "accumulation.each-counts-once")
class ClearsLowPrecisionGradients(ReferenceTrainer):
    """The backward pass clears accumulated gradients of low-precision parameters."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        low = [name for name, format_name in self.formats.items() if format_name in ("float16", "bfloat16")]
        for name in low:
            self.window.gradients.pop(name, None)
        super().take_micro_batch(gradients)


@fault("https://github.com/mlnomadpy/flaxchat/issues/6", "accumulation.keeps-precision")
class AccumulatorInTheWeightsFormat(ReferenceTrainer):
    """The accumulator has the parameter's format, low or not."""

    def accumulator_format(self, name: str) -> str:
        return self.formats[name]


@fault("https://github.com/andreped/GradientAccumulator/issues/64", "accumulation.keeps-precision")
class Float32AccumulatorForEveryFormat(ReferenceTrainer):
    """The accumulator is float32, also for float64 parameters."""

    def accumulator_format(self, name: str) -> str:
        return "float32"


@fault("https://github.com/mosaicml/composer/issues/9", "accumulation.missing-gradients-count")
class ForgetsWhatTheLastMicroBatchLeavesOut(ReferenceTrainer):
    """Only parameters that the window's last micro-batch uses are updated."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        self.window.gradients = {n: g for n, g in self.window.gradients.items() if n in gradients}


@fault("https://github.com/mosaicml/composer/issues/9", "accumulation.missing-gradients-count")
class AccumulatesOnlyWhatTheFirstMicroBatchUsed(ReferenceTrainer):
    """Only parameters that the first micro-batch uses have accumulators."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.window.micro_batches == 1 or name in self.window.gradients:
            super().accumulate_gradient(name, gradient)


@fault("", "accumulation.bytes-flat-in-k")
class AccumulatorCountsAsSaved(ReferenceTrainer):
    """Inside a window the bytes saved for backward include the accumulator's."""

    def saved_bytes(self, batch: Any) -> int:
        return super().saved_bytes(batch) + sum(array.nbytes for array in self.accumulator().values())


@fault("https://github.com/espnet/espnet/pull/3283", "accumulation.bad-window-is-forgotten")
class IncompleteOverflowStaysInTheAccumulator(ReferenceTrainer):
    """The accumulator is not emptied after an incomplete window that had a non-finite micro-batch."""

    def empty_accumulator(self) -> None:
        window = self.window
        super().empty_accumulator()
        if window.micro_batches < self.recipe.accumulation and self.has_nonfinite(window.gradients):
            self.window.gradients = window.gradients


@fault("https://github.com/huggingface/transformers/pull/34191", "accumulation.weighs-items")
class MeanOfMeans(ReferenceTrainer):
    """A micro-batch's loss is its own mean over k, whatever number of items it holds."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        return Tensor(loss.value / (batch_items * self.recipe.accumulation), loss.format)


@fault("https://github.com/huggingface/transformers/pull/34373", "accumulation.weighs-items")
class EachWorkerNormalisesByItsOwnItems(ReferenceTrainer):
    """Two workers of a window normalise by their own items, and their gradients are averaged."""

    def update(self, window: Window) -> Update:
        shares = [share for share in (window[::2], window[1::2]) if share]
        for share in shares:
            for batch in share:
                self.accumulate(batch, sum(b.items for b in share) * len(shares))
        return self.apply()


@fault("https://github.com/huggingface/transformers/issues/37766", "accumulation.one-is-identity")
class WindowOfOneIsNormalisedAgain(ReferenceTrainer):
    """With k = 1 a window counts one item more than a whole update."""

    _is_whole_update = False

    def accumulate(self, batch: Batch, items: int) -> float:
        return super().accumulate(batch, items + (self.recipe.accumulation == 1 and not self._is_whole_update))

    def update(self, window: Window) -> Update:
        self._is_whole_update = True
        return super().update(window)


@fault("https://github.com/karpathy/nanochat/pull/623", "accumulation.weighs-items")
class EmptyMicroBatchIsNaN(ReferenceTrainer):
    """The loss of a micro-batch without counted tokens is 0/0."""

    def accumulate(self, batch: Batch, items: int) -> float:
        loss = super().accumulate(batch, items)
        if not batch.items:
            self.window.gradients = {n: np.full_like(g, np.nan) for n, g in self.window.gradients.items()}
        return loss


@fault("https://github.com/allenai/allennlp/pull/4706", "accumulation.equals-full-batch")
class ReportsTheLastMicroBatch(ReferenceTrainer):
    """The loss of a window is that of its last micro-batch."""

    def apply(self) -> Update:
        update = super().apply()
        return replace(update, loss=update.micro_losses[-1] if update.micro_losses else update.loss)


@fault(
    "https://github.com/keras-team/keras/issues/19990",
    "accumulation.nothing-before-boundary",
    "accumulation.once-per-window",
)
class WeightDecayInsideTheWindow(ReferenceTrainer):
    """Decoupled weight decay is applied in every micro-batch."""

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


@fault(
    "https://github.com/huggingface/accelerate/issues/1847",
    "accumulation.nothing-before-boundary",
    "accumulation.remainder",
)
class EveryMicroBatchSyncsAfterTheFirstEpoch(ReferenceTrainer):
    """After the end of the data every micro-batch makes an update."""

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
    """An update before any backward pass is applied with zero gradients."""

    def apply(self) -> Update:
        if not self.window.micro_batches:
            self.window_takes({name: np.zeros_like(value) for name, value in self.masters.items()}, 1)
        return super().apply()


@fault("https://github.com/Haian-Jin/LVSM/pull/19", "accumulation.empty-window", raises=True)
class EmptyWindowStaysUnscaled(ReferenceTrainer):
    """A refused empty window stays marked as unscaled, so the next one is refused."""

    def apply(self) -> Update:
        if not self.window.micro_batches:
            self.unscale_gradients()
        elif self.window.unscaled and self.scaler is not None:
            raise RuntimeError("this window's gradients have already been unscaled")
        return super().apply()


@fault("https://github.com/huggingface/transformers/pull/614", "accumulation.groups-change-nothing")
class ClipsEveryGroupByItself(ReferenceTrainer):
    """Each group of parameters is clipped by its own norm."""

    def clip(self, gradients: Arrays) -> Arrays:
        groups = [list(gradients)[start :: self.recipe.groups] for start in range(self.recipe.groups)]
        clip = super().clip
        return {n: g for group in groups for n, g in clip({n: gradients[n] for n in group}).items()}
