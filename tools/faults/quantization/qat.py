"""Faults of training that is aware of quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import Calibrated, CodeRange, FakeRule, QuantRule
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.quantization.qat import QatLayers, Ranges
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/23874", "quantization.aware-values")
class OutputsStayFloat(QatLayers):
    """What a layer gives has no codes in training, though the rule says so."""

    def faked(self, name: str, x: Tensor, rule: QuantRule | None, ranges: Ranges, observes: bool) -> Tensor:
        faked = super().faked(name, x, rule, ranges, observes)
        return x if name.endswith("outputs") else faked


@fault("https://github.com/Xilinx/brevitas/pull/341", "quantization.aware-values")
class OneRangeForTheWeight(QatLayers):
    """All columns of a weight share the range of the whole."""

    def weight(self, weight: Tensor) -> Tensor:
        values = weight.plain()
        return self.fake(weight, values.min(), values.max(), self.rule.linear.weight)


@fault("https://github.com/microsoft/nni/pull/3160", "quantization.aware-gradients")
class ClippedValuesPassOn(QatLayers):
    """Values beyond the range pass their gradient on."""

    def passes_on(self, values: Array, unclipped: Array, rule: FakeRule) -> Array:
        return np.ones_like(super().passes_on(values, unclipped, rule))


@fault("https://github.com/pytorch/ao/pull/4806", "quantization.aware-gradients")
class EndsPassNothingOn(QatLayers):
    """Values whose code is the first or the last pass nothing on."""

    def passes_on(self, values: Array, unclipped: Array, rule: FakeRule) -> Array:
        return (unclipped > rule.low) & (unclipped < rule.high)


@fault("https://github.com/PaddlePaddle/Paddle/pull/39307", "quantization.ranges-follow")
class AverageStartsAtOne(QatLayers):
    """The average begins at a range from -1 to 1, which no batch had."""

    def moved(self, known: Array, values: Array) -> Array:
        return super().moved(np.array([-1.0, 1.0]) if known[0] > known[1] else known, values)


@fault("https://github.com/pytorch/pytorch/pull/27395", "quantization.ranges-follow")
class WidestRangeStays(QatLayers):
    """A range is the widest that any batch had."""

    def moved(self, known: Array, values: Array) -> Array:
        return np.array([min(known[0], values.min()), max(known[1], values.max())])


@fault("https://github.com/pytorch/pytorch/pull/27113", "quantization.ranges-follow")
class NeverFrozen(ReferenceTrainer):
    """The switch that is to freeze ranges does nothing."""

    def observes(self) -> bool:
        return not self._replaying


@fault("https://github.com/pytorch/ao/issues/2138", "quantization.observers-hold-still")
class PredictionsAreObserved(QatLayers):
    """Ranges move with predictions too."""

    def faked(self, name: str, x: Tensor, rule: QuantRule | None, ranges: Ranges, observes: bool) -> Tensor:
        return super().faked(name, x, rule, ranges, True)


@fault("https://github.com/pytorch/pytorch/issues/79862", "quantization.observers-hold-still")
class RunAgainIsObserved(ReferenceTrainer):
    """A segment that is run again moves ranges a second time."""

    def observes(self) -> bool:
        self._replaying, replaying = 0, self._replaying
        try:
            return super().observes()
        finally:
            self._replaying = replaying


@fault("https://github.com/pytorch/ao/pull/4345", "quantization.convert-is-faithful")
class ConvertsByAnotherScale(ReferenceTrainer):
    """Conversion widens each range by one part in 127, as another formula for the scale does."""

    def convert(self) -> ReferenceQuantizedModel:
        known = self.observed
        self.observed = lambda: {name: _widened(each) for name, each in known().items()}  # type: ignore[method-assign]
        try:
            return super().convert()
        finally:
            del self.observed


@fault("https://github.com/pytorch/executorch/pull/13284", "quantization.convert-is-faithful")
class ConvertedClipsElsewhere(ReferenceTrainer):
    """The converted model has outputs of seven bits, and training had eight."""

    def convert(self) -> ReferenceQuantizedModel:
        model = super().convert()
        requantized = model.requantized
        model.requantized = lambda name, result, rule: requantized(name, np.minimum(result, 0.5 * result.max()), rule)  # type: ignore[method-assign]
        return model


@fault("https://github.com/pytorch/ao/pull/2024", "quantization.aware-survives-saving")
class RangesAreNotLoaded(ReferenceTrainer):
    """A load leaves ranges as they are."""

    def restore(self, path: Path) -> None:
        statistics = dict(self.statistics)
        super().restore(path)
        self.statistics = statistics


@fault("https://github.com/zzzxxxttt/pytorch_DoReFaNet/issues/12", "quantization.aware-accuracy")
class RangesOfTheFirstSample(QatLayers):
    """Ranges follow the first sample of each batch."""

    def moved(self, known: Array, values: Array) -> Array:
        return super().moved(known, values[:1] / 8)


def _widened(ranges: Calibrated) -> Calibrated:
    ends = (ranges.inputs, ranges.outputs)
    inputs, outputs = (each and CodeRange(each.scale * 128 / 127, each.zero_point) for each in ends)
    assert inputs is not None
    return Calibrated(inputs, outputs)
