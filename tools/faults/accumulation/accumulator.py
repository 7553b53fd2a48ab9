"""Faults of the accumulator: when it is cleared, how it adds, in which format, and for which parameters."""

from __future__ import annotations

from fixtures.arrays import Array
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/deepspeedai/DeepSpeed/pull/5154", "accumulation.each-counts-once")
class ClearsLowPrecisionGradients(ReferenceTrainer):
    """The backward pass clears what low-precision parameters have gathered, so that only their last gradient counts."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        low = [name for name, format_name in self.formats.items() if format_name in ("float16", "bfloat16")]
        for name in low:
            self.window.gradients.pop(name, None)
        super().take_micro_batch(gradients)


@fault("https://github.com/mlnomadpy/flaxchat/issues/6", "accumulation.keeps-precision")
class AccumulatorInTheWeightsFormat(ReferenceTrainer):
    """The accumulator takes the parameter's own format, low or not."""

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
    """The first micro-batch makes the accumulators, so that a parameter which it does not use has none."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.window.micro_batches == 1 or name in self.window.gradients:
            super().accumulate_gradient(name, gradient)
