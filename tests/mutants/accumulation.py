"""Faults of gradient accumulation: how a window's micro-batches are weighed, gathered and made one update."""

from __future__ import annotations

from fixtures.arrays import Array
from fixtures.model import Window
from frameworks.contract import Update
from frameworks.reference.decisions import Arrays
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault

# how micro-batches are weighed


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
    "https://github.com/huggingface/accelerate/issues/1970",
    component="reported loss",
    clauses=("accumulation.equals-full-batch",),
)
class ReportsTheLossDividedByCount(ReferenceTrainer):
    """Gradients are right, and the loss that is reported is divided by k once too often."""

    def reported_loss(self, total: float, items: int) -> float:
        return super().reported_loss(total, items) / self.recipe.accumulation


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


# the accumulator


@fault(
    "https://github.com/facebookresearch/mmf/pull/747",
    component="accumulator",
    clauses=("accumulation.each-counts-once",),
)
class ZeroedInTheMiddleOfTheWindow(ReferenceTrainer):
    """Gradients are set to zero before the last but one micro-batch of a window."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        if self.window.micro_batches == self.recipe.accumulation - 2:
            self.window.gradients.clear()
        super().take_micro_batch(gradients)


@fault(
    "https://github.com/pytorch/pytorch/issues/73784",
    component="accumulator",
    clauses=("accumulation.each-counts-once", "accumulation.equals-full-batch"),
)
class OverwritesInsteadOfAdding(ReferenceTrainer):
    """A gradient takes the place of what the accumulator holds."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        self.window.gradients[name] = gradient


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/5154",
    component="accumulator",
    clauses=("accumulation.each-counts-once",),
)
class ClearsLowPrecisionGradients(ReferenceTrainer):
    """The backward pass clears what low-precision parameters have gathered, so that only their last gradient counts."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        low = [name for name, format_name in self.formats.items() if format_name in ("float16", "bfloat16")]
        for name in low:
            self.window.gradients.pop(name, None)
        super().take_micro_batch(gradients)


@fault(
    "https://github.com/mlnomadpy/flaxchat/issues/6",
    component="accumulator",
    clauses=("accumulation.keeps-precision",),
)
class AccumulatorInTheWeightsFormat(ReferenceTrainer):
    """The accumulator takes the parameter's own format, low or not."""

    def accumulator_format(self, name: str) -> str:
        return self.formats[name]


@fault(
    "https://github.com/deepspeedai/DeepSpeed/issues/1800",
    component="accumulator",
    clauses=("accumulation.keeps-precision",),
)
class AccumulatesInTheComputeFormat(ReferenceTrainer):
    """Sums of gradients are rounded to the format of mixed precision, though the parameters are float32."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        super().accumulate_gradient(name, gradient)
        held = self.window.gradients[name]
        self.window.gradients[name] = self.rounding.round(held, self.recipe.precision.format)


@fault(
    "https://github.com/andreped/GradientAccumulator/issues/64",
    component="accumulator",
    clauses=("accumulation.keeps-precision",),
)
class Float32AccumulatorForEveryFormat(ReferenceTrainer):
    """The accumulator is float32, also for float64 parameters."""

    def accumulator_format(self, name: str) -> str:
        return "float32"


@fault(
    "https://github.com/mosaicml/composer/issues/9",
    component="accumulator",
    clauses=("accumulation.missing-gradients-count",),
)
class ForgetsWhatTheLastMicroBatchLeavesOut(ReferenceTrainer):
    """Only parameters that the window's last micro-batch uses are updated."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        self.window.gradients = {n: g for n, g in self.window.gradients.items() if n in gradients}


@fault(
    "https://github.com/mosaicml/composer/issues/9",
    component="accumulator",
    clauses=("accumulation.missing-gradients-count",),
)
class AccumulatesOnlyWhatTheFirstMicroBatchUsed(ReferenceTrainer):
    """The first micro-batch makes the accumulators, so that a parameter which it does not use has none."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.window.micro_batches == 1 or name in self.window.gradients:
            super().accumulate_gradient(name, gradient)


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
