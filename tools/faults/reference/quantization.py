"""Faults of quantized models: ranges, rounding, conversion, loading and training."""

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.contract import Calibrated, CodeRange, FakeRule, LinearRule, PostTraining, Quantized, QuantRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.tape import Tensor
from frameworks.reference.low_rank import ReferenceAdaptedNetwork
from frameworks.reference.quantization.formats import ReferenceQuantizers
from frameworks.reference.quantization.post_training import (
    RULES,
    QatLayers,
    Ranges,
    ReferencePostTraining,
    ReferenceQuantizedModel,
)
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

_LANES = 16
_SAMPLES = 64
"""Samples of a batch that calibration uses."""
_SMALLEST = 1024


@fault("https://github.com/microsoft/onnxruntime/pull/28606", "quantization.ties")
class TailOfARowRoundsTiesAway(ReferenceQuantizers):
    """The remainder of a row after vectors of sixteen values is rounded half away from zero instead of half to even."""

    def codes(self, values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> Array:
        codes = np.array(super().codes(values, scale, zero_point, rule))
        tail = values.shape[-1] % _LANES
        if tail:
            quotient = values / scale
            rounded = np.copysign(np.floor(np.abs(quotient) + 0.5), quotient)
            half = np.abs(quotient - np.trunc(quotient)) == 0.5
            clipped = np.clip(rounded + zero_point, rule.low, rule.high)
            codes[..., -tail:] = np.where(half, clipped, codes)[..., -tail:]
        return codes


@fault("https://github.com/apache/mxnet/pull/21008", "quantization.calibrated-range")
class CalibrationSeesFirstSamples(ReferenceQuantizedModel):
    """Static calibration uses the first 64 samples of each batch only."""

    def observe_ranges(
        self, weights: Mapping[str, Array], batches: Sequence[Array], quantized: Collection[str]
    ) -> dict[str, Array]:
        return super().observe_ranges(weights, [batch[:_SAMPLES] for batch in batches], quantized)


@fault("https://github.com/rajveer43/VeloxQuant-MLX/pull/167", "quantization.int8-load")
class OutliersExceedTheThreshold(ReferenceQuantizedModel):
    """A value equal to the threshold is no outlier, against the declared rule."""

    def outliers(self, cast: Array) -> Array:
        return np.asarray((np.abs(cast) > self._rule.outliers).any(axis=0))


@fault("https://github.com/mne-tools/mne-python/pull/1768", "quantization.int8-load")
class NegativeOutliersAreMissed(ReferenceQuantizedModel):
    """Values, not magnitudes, are compared with the threshold."""

    def outliers(self, cast: Array) -> Array:
        return np.asarray((cast >= self._rule.outliers).any(axis=0))


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/767", "quantization.int8-load")
class OutlierColumnsStay(ReferenceQuantizedModel):
    """A column that had an outlier in one call stays unquantized in later calls."""

    _columns: Array | None = None

    def outliers(self, cast: Array) -> Array:
        outliers = super().outliers(cast)
        if self._columns is not None and self._columns.shape == outliers.shape:
            outliers = outliers | self._columns
        self._columns = outliers
        return outliers


@fault("https://github.com/NVIDIA/Megatron-LM/pull/6666", "quantization.int8-load", "quantization.weights-as-declared")
class WeightsAreNotCast(ReferenceQuantizedModel):
    """The codes of weights are made from float32 values without a cast to the declared format."""

    def cast(self, operand: Array) -> Array:
        weight = operand.dtype == np.float32
        return operand if weight else super().cast(operand)


@fault("https://github.com/huggingface/transformers/pull/45743", "quantization.survives-saving", raises=True)
class LoadsAreNotSaved(ReferenceQuantizedModel):
    """Saving a loaded model raises."""

    _loaded = False

    def save(self, path: Path) -> None:
        if self._loaded:
            raise NotImplementedError
        super().save(path)

    def restore(self, path: Path) -> None:
        super().restore(path)
        self._loaded = True


@fault("https://github.com/Xilinx/brevitas/pull/341", "quantization.weights-as-declared")
class OneScaleForAllColumns(ReferenceQuantizedModel):
    """All columns of a weight take their scale from the largest."""

    def convert_weight(self, name: str, weight: Array) -> dict[str, Array]:
        stored = super().convert_weight(name, weight)
        if self._rule.weight.group:
            return stored
        scale = np.full_like(stored[f"scale/{name}"], stored[f"scale/{name}"].max())
        return {f"codes/{name}": np.rint(weight / scale).astype(np.int8), f"scale/{name}": scale}


@fault("https://github.com/ml-explore/mlx-lm/pull/1880", "quantization.weights-as-declared")
class GroupsReadAsTheFirst(ReferenceQuantizedModel):
    """Every group of a column is brought back with the scale of the first."""

    def _weight(self, name: str) -> Quantized:
        weight = super()._weight(name)
        scale = np.broadcast_to(weight.scale[:1], weight.scale.shape)
        return Quantized(weight.codes, scale, weight.zero_point, (weight.codes * scale).astype(np.float32))


@fault("https://github.com/pytorch/FBGEMM/issues/125", "quantization.linear-arithmetic")
class LayerPairsSaturate(ReferenceQuantizedModel):
    """Pairs of products are accumulated in 16 bits, which saturate."""

    def multiply_integers(self, inputs: Array, weight: Array) -> Array:
        total = np.zeros((len(inputs), weight.shape[1]), np.int64)
        for start in range(0, weight.shape[0], 2):
            total += np.clip(inputs[:, start : start + 2] @ weight[start : start + 2], -(2**15), 2**15 - 1)
        return total


@fault(
    "https://github.com/microsoft/onnxruntime/issues/8625",
    "quantization.linear-arithmetic",
    "quantization.dynamic-scale",
)
class RowsShareARange(ReferenceQuantizedModel):
    """The rows of a call share one range."""

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        scale, zero = super().input_range(name, inputs, rule)
        return (np.full_like(scale, scale.max()), zero) if scale.ndim else (scale, zero)


@fault("https://github.com/microsoft/onnxruntime/issues/10111", "quantization.dynamic-scale", "laws.quantized-models")
class RangeOnlyGrows(ReferenceQuantizedModel):
    """A dynamic range is the widest of all calls."""

    _widest = 0.0

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        scale, zero = super().input_range(name, inputs, rule)
        if self._rule.ranges == "calibration":
            return scale, zero
        self._widest = max(self._widest, float(scale.max()))
        return np.full_like(scale, self._widest), zero


@fault("https://github.com/tensorflow/tensorflow/issues/44114", "quantization.calibration-needed")
class InventsARange(ReferenceQuantizedModel):
    """Without calibration data every range is -1 to 1."""

    def __init__(
        self,
        rule: LinearRule,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Collection[str] = (),
    ) -> None:
        ends = np.stack([np.full(model.sample, -1.0), np.full(model.sample, 1.0)]).astype(np.float32)
        super().__init__(rule, model, weights, calibration or (ends,), skip)


@fault("https://github.com/PaddlePaddle/Paddle/pull/39307", "quantization.calibrated-range")
class LastBatchDecides(ReferenceQuantizedModel):
    """The range of a layer is that of the last calibration batch."""

    def ranges(self, seen: Sequence[tuple[Array, Array]]) -> Array:
        return super().ranges(seen[-1:])


@fault("https://github.com/pytorch/pytorch/issues/23838", "quantization.calibrated-range")
class CalibratedWithoutZero(ReferenceQuantizedModel):
    """A calibrated range begins at the smallest value even if that is above zero."""

    def code_range(self, batches: Sequence[Array], rule: QuantRule | None) -> tuple[float, float]:
        if rule is None:
            return super().code_range(batches, rule)
        lowest, highest = min(map(np.min, batches)), max(map(np.max, batches))
        scale = float(highest - lowest) / rule.divisor
        return scale, float(np.clip(rule.low - np.rint(lowest / scale), rule.low, rule.high))


@fault("https://github.com/pytorch/pytorch/pull/27395", "quantization.calibration-order")
class AveragesBatches(ReferenceQuantizedModel):
    """A range is a moving average over batches, so that their order matters."""

    def code_range(self, batches: Sequence[Array], rule: QuantRule | None) -> tuple[float, float]:
        ranges = [ReferenceQuantizedModel.code_range(self, (batch,), rule) for batch in batches]
        scale = ranges[0][0]
        for batch_scale, _ in ranges[1:]:
            scale += 0.1 * (batch_scale - scale)
        return scale, ranges[0][1]


@fault("https://github.com/huggingface/transformers/issues/45674", "quantization.only-what-was-asked")
class SkipsOnlyTheFirst(ReferenceQuantizedModel):
    """Of several excluded layers only the first is excluded."""

    def choose_layers(self, skip: Collection[str]) -> list[str]:
        return super().choose_layers(list(skip)[:1])


@fault("https://github.com/pytorch/ao/issues/3867", "quantization.only-what-was-asked")
class UnknownNameIsIgnored(ReferenceQuantizedModel):
    """An unknown name among the excluded layers is ignored."""

    def __init__(
        self,
        rule: LinearRule,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Collection[str] = (),
    ) -> None:
        super().__init__(rule, model, weights, calibration, [name for name in skip if name in weights])


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.bytes")
class FloatWeightsAreKept(ReferenceQuantizedModel):
    """The float32 weight is stored next to its codes."""

    def convert_weight(self, name: str, weight: Array) -> dict[str, Array]:
        return super().convert_weight(name, weight) | {f"float/{name}": weight}


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1391", "quantization.survives-saving")
class LoadsWhatItCan(ReferenceQuantizedModel):
    """A load of a damaged file restores the readable parts without an error."""

    def restore(self, path: Path) -> None:
        with contextlib.suppress(ValueError):
            super().restore(path)


@fault("https://github.com/keras-team/keras/pull/19263", "quantization.zeros")
class ColumnsOfZerosDivide(ReferenceQuantizedModel):
    """A column of zeros has the scale 0, by which it is divided."""

    def _weight(self, name: str) -> Quantized:
        weight = super()._weight(name)
        scale = np.where(weight.scale <= 2.0**-126, np.nan, weight.scale)
        return Quantized(weight.codes, scale, weight.zero_point, weight.values)


@fault("https://github.com/zzzxxxttt/pytorch_DoReFaNet/issues/12", "quantization.accuracy")
class InputsInThreeBits(ReferenceQuantizedModel):
    """Inputs and weights are quantized to 3 bits instead of 8."""

    def product(self, name: str, wide: Array, weight: Quantized) -> Array:
        codes = np.rint(weight.codes / 32) * 32
        return super().product(name, wide, Quantized(codes, weight.scale, weight.zero_point, weight.values))


@fault("https://github.com/pytorch/pytorch/issues/23874", "quantization.aware-values")
class OutputsStayFloat(QatLayers):
    """QAT does not quantize layers' outputs, against the declared rule."""

    def quantize_by_range(self, name: str, x: Tensor, rule: QuantRule | None, ranges: Ranges, observes: bool) -> Tensor:
        faked = super().quantize_by_range(name, x, rule, ranges, observes)
        return x if name.endswith("outputs") else faked


@fault("https://github.com/Xilinx/brevitas/pull/341", "quantization.aware-values")
class OneRangeForTheWeight(QatLayers):
    """All columns of a weight share one range."""

    def weight(self, weight: Tensor) -> Tensor:
        values = weight.plain()
        return self.fake(weight, values.min(), values.max(), self.rule.linear.weight)


@fault("https://github.com/microsoft/nni/pull/3160", "quantization.aware-gradients")
class ClippedValuesPassOn(QatLayers):
    """Values beyond the range have a gradient."""

    def passes_on(self, values: Array, unclipped: Array, rule: FakeRule) -> Array:
        return np.ones_like(super().passes_on(values, unclipped, rule))


@fault("https://github.com/pytorch/ao/pull/4806", "quantization.aware-gradients")
class EndsPassNothingOn(QatLayers):
    """Values with the first or last code have no gradient."""

    def passes_on(self, values: Array, unclipped: Array, rule: FakeRule) -> Array:
        return (unclipped > rule.low) & (unclipped < rule.high)


@fault("https://github.com/PaddlePaddle/Paddle/pull/39307", "quantization.ranges-follow")
class AverageStartsAtOne(QatLayers):
    """The moving range starts at -1 to 1."""

    def update_range(self, known: Array, values: Array) -> Array:
        return super().update_range(np.array([-1.0, 1.0]) if known[0] > known[1] else known, values)


@fault("https://github.com/pytorch/pytorch/pull/27113", "quantization.ranges-follow")
class NeverFrozen(ReferenceTrainer):
    """The switch that freezes ranges has no effect."""

    def observes(self) -> bool:
        return not self._replaying


@fault("https://github.com/pytorch/ao/issues/2138", "quantization.observers-hold-still")
class PredictionsAreObserved(QatLayers):
    """Predictions move the ranges."""

    def quantize_by_range(self, name: str, x: Tensor, rule: QuantRule | None, ranges: Ranges, observes: bool) -> Tensor:
        return super().quantize_by_range(name, x, rule, ranges, True)


@fault("https://github.com/pytorch/pytorch/issues/79862", "quantization.observers-hold-still")
class RunAgainIsObserved(ReferenceTrainer):
    """A recomputed segment moves the ranges a second time."""

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
        known = self.observe_ranges
        self.observe_ranges = lambda: {name: _widen_ranges(ranges) for name, ranges in known().items()}  # type: ignore[method-assign]
        try:
            return super().convert()
        finally:
            del self.observe_ranges


@fault("https://github.com/pytorch/executorch/pull/13284", "quantization.convert-is-faithful")
class ConvertedClipsElsewhere(ReferenceTrainer):
    """The converted model has outputs of seven bits, and training had eight."""

    def convert(self) -> ReferenceQuantizedModel:
        model = super().convert()
        requantized = model.requantize
        model.requantize = lambda name, result, rule: requantized(name, np.minimum(result, 0.5 * result.max()), rule)  # type: ignore[method-assign]
        return model


@fault("https://github.com/pytorch/ao/pull/2024", "quantization.aware-survives-saving")
class RangesAreNotLoaded(ReferenceTrainer):
    """A load does not restore the ranges."""

    def restore(self, path: Path) -> None:
        statistics = dict(self.statistics)
        super().restore(path)
        self.statistics = statistics


@fault("https://github.com/zzzxxxttt/pytorch_DoReFaNet/issues/12", "quantization.aware-accuracy")
class RangesOfTheFirstSample(QatLayers):
    """Ranges follow the first sample of each batch."""

    def update_range(self, known: Array, values: Array) -> Array:
        return super().update_range(known, values[:1] / 8)


def _widen_ranges(ranges: Calibrated) -> Calibrated:
    ends = (ranges.inputs, ranges.outputs)
    inputs, outputs = (end and CodeRange(end.scale * 128 / 127, end.zero_point) for end in ends)
    assert inputs is not None
    return Calibrated(inputs, outputs)


@fault("https://github.com/microsoft/onnxruntime/issues/19694", "quantization.range-follows-data", "laws.codes")
class RangesAlongTheOtherAxis(ReferenceQuantizers):
    """Ranges by row are taken over columns, and ranges by column over rows."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        if rule.axis is None or rule.group:
            return super().range_of(values, rule)
        if values.shape[0] != values.shape[1]:
            return super().range_of(values, rule)
        return super().range_of(values.T, rule)


@fault("https://github.com/ml-explore/mlx-lm/pull/1880", "quantization.range-follows-data")
class FirstGroupForAll(ReferenceQuantizers):
    """Every group of a row has the range of the first one."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        lowest, highest = super().range_of(values, rule)
        if rule.group:
            return np.broadcast_to(lowest[:, :1], values.shape), np.broadcast_to(highest[:, :1], values.shape)
        return lowest, highest


@fault("https://github.com/pytorch/pytorch/issues/23838", "quantization.range-follows-data")
class ZeroIsLeftOut(ReferenceQuantizers):
    """A range of values of one sign excludes zero."""

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        if rule.symmetric:
            return super().scale_of(lowest, highest, rule)
        return np.maximum((highest - lowest) / rule.divisor, rule.smallest_scale)

    def zero_point_of(self, lowest: Array, scale: Array, rule: QuantRule) -> Array:
        if rule.symmetric:
            return super().zero_point_of(lowest, scale, rule)
        return np.clip(np.rint(rule.low - lowest / scale), -(2**31), 2**31 - 1)


@fault("https://github.com/pytorch/ao/pull/1964", "quantization.ties")
class ZeroPointBeforeRounding(ReferenceQuantizers):
    """The zero point is added before the quotient is rounded."""

    def codes(self, values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> Array:
        odd = np.where(zero_point % 2 == 0, 0.0, zero_point)
        moved = self.round(values / scale + odd) + (zero_point - odd)
        return np.nan_to_num(np.clip(moved, rule.low, rule.high))


@fault(
    "https://github.com/scott-griffiths/bitstring/issues/342",
    "quantization.codes-as-declared",
    "quantization.round-trip",
)
class FractionsAreCutOff(ReferenceQuantizers):
    """Quotients are truncated to integers."""

    def round(self, quotient: Array) -> Array:
        return np.trunc(quotient)


@fault("https://github.com/pytorch/executorch/pull/20655", "quantization.round-trip")
class DifferenceInEightBits(ReferenceQuantizers):
    """The zero point is subtracted in eight bits, which wrap."""

    def dequantize(self, codes: Array, scale: Array, zero_point: Array) -> Array:
        difference = (codes - zero_point + 128) % 256 - 128
        return np.where(np.broadcast_to(zero_point, codes.shape) == 0, codes, difference) * scale


@fault("https://github.com/keras-team/keras/pull/19263", "quantization.degenerate")
class NoSmallestScale(ReferenceQuantizers):
    """A range of zeros gives a scale of zero, by which its values are divided."""

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        return super().scale_of(lowest, highest, replace(rule, smallest_scale=0.0))

    def dequantize(self, codes: Array, scale: Array, zero_point: Array) -> Array:
        return np.divide(super().dequantize(codes, scale, zero_point), scale) * scale


@fault("https://github.com/pytorch/pytorch/issues/100051", "quantization.degenerate")
class WidthInSingle(ReferenceQuantizers):
    """The width of a range is computed in float32, where it overflows."""

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        if rule.symmetric:
            return super().scale_of(lowest, highest, rule)
        width = np.maximum(highest, 0.0).astype(np.float32) - np.minimum(lowest, 0.0).astype(np.float32)
        return np.maximum(width.astype(np.float64) / rule.divisor, rule.smallest_scale)


@fault("https://github.com/microsoft/onnxruntime/issues/8625", "quantization.non-finite")
class OneRowSpoilsAll(ReferenceQuantizers):
    """If one range is not finite, the scale of every range is NaN."""

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        scale = super().scale_of(lowest, highest, rule)
        return scale if np.isfinite(scale).all() else np.full_like(scale, np.nan)


@fault("https://github.com/tensorflow/tensorflow/issues/120295", "quantization.non-finite")
class NanIsOverlooked(ReferenceQuantizers):
    """A range ignores NaN, whose code is then 0."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        return super().range_of(np.where(np.isnan(values), 0.0, values), rule)


@fault("https://github.com/pytorch/pytorch/pull/155109", "quantization.non-finite")
class InfinityTakesTheLowestCode(ReferenceQuantizers):
    """Fake quantization gives infinities of either sign the lowest code."""

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        return super().fake_quantize(name, np.where(np.isinf(values), np.float32(-np.inf), values), scale, zero_point)


@fault("https://github.com/pytorch/pytorch/pull/37188", "quantization.fake-values")
class FakeTiesGoAway(ReferenceQuantizers):
    """Fake quantization rounds ties away from zero where the quantizer rounds them to even."""

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        quotient = values.astype(np.float64) / scale
        half = np.abs(quotient - np.trunc(quotient)) == 0.5
        moved = np.where(half, np.trunc(quotient) + np.sign(quotient), quotient) * scale
        return super().fake_quantize(name, moved.astype(np.float32), scale, zero_point)


@fault("https://github.com/pytorch/executorch/pull/13284", "quantization.fake-values")
class FakeRangeIsReduced(ReferenceQuantizers):
    """Fake quantization clips at half of the highest code."""

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        rule = self.fake_rules()[name]
        restored, passed = super().fake_quantize(name, values, scale, zero_point)
        return np.minimum(restored, (rule.high // 2 - zero_point) * scale).astype(np.float32), passed


@fault("https://github.com/microsoft/nni/pull/3160", "quantization.straight-through")
class GradientEverywhere(ReferenceQuantizers):
    """Clipped values have a gradient."""

    def passes_on(self, values: Array, unclipped: Array, scale: Array, zero_point: Array, rule: FakeRule) -> Array:
        return np.ones(values.shape, bool)


@fault("https://github.com/pytorch/ao/pull/4806", "quantization.straight-through")
class GradientOfTheOpenRange(ReferenceQuantizers):
    """Values with the first or last code have no gradient."""

    def passes_on(self, values: Array, unclipped: Array, scale: Array, zero_point: Array, rule: FakeRule) -> Array:
        return (unclipped > rule.low) & (unclipped < rule.high)


@fault("https://github.com/pytorch/ao/issues/1662", "quantization.codes-as-declared")
class RestoredInHalf(ReferenceQuantizers):
    """Dequantization computes in float16."""

    def quantize(self, name: str, values: Array) -> Quantized:
        quantized = super().quantize(name, values)
        with np.errstate(over="ignore"):
            return replace(quantized, values=quantized.values.astype(np.float16).astype(np.float32))


class LeavesSmallWeights(ReferencePostTraining):
    """Dynamic quantization declares a minimum of 1024 entries and leaves smaller weights in float32."""

    def rules(self) -> Mapping[str, LinearRule]:
        return {**RULES, "dynamic-int8": replace(RULES["dynamic-int8"], smallest=_SMALLEST)}


class _TakesLargerLayers(ReferenceQuantizedModel):
    def choose_layers(self, skip: Collection[str]) -> list[str]:
        return [name for name in super().choose_layers(skip) if math.prod(self._shapes[name]) > self._rule.smallest]


@fault("https://github.com/tensorflow/tensorflow/issues/53094", "quantization.only-what-was-asked")
class LayersThatAreJustLargeEnoughStay(ReferenceFramework):
    """A weight with exactly the declared minimum of entries stays in float32."""

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {**super().rules(), PostTraining: partial(LeavesSmallWeights, _TakesLargerLayers)}


@fault(
    "https://github.com/tensorflow/tensorflow/issues/53094", "quantization.only-what-was-asked", "laws.quantized-models"
)
class SmallWeightsStay(ReferenceQuantizedModel):
    """Weights of fewer than 1024 entries stay in float32 without a declaration."""

    def choose_layers(self, skip: Collection[str]) -> list[str]:
        return [name for name in super().choose_layers(skip) if math.prod(self._shapes[name]) >= _SMALLEST]


@fault("https://github.com/locuslab/open-unlearning/issues/178", "adapters.all-train")
class AdapterBranchIsDetached(ReferenceAdaptedNetwork):
    """The products of the adapters are cut off from the graph, so that no adapter trains."""

    def differentiate(self, inputs: Array, gradient: Array) -> dict[str, Array]:
        gradients = super().differentiate(inputs, gradient)
        return {name: value for name, value in gradients.items() if name[-2:] not in (".a", ".b")}


@fault("https://github.com/Blaizzy/mlx-vlm/pull/2181", "adapters.base-keeps-bits")
class BaseIsNotFrozen(ReferenceAdaptedNetwork):
    """The optimizer has the base too, so that weight decay shrinks weights and scales without a gradient."""

    def update(self, *window: tuple[Array, Array]) -> None:
        super().update(*window)
        factor = 1.0 - self.recipe.optimizer.learning_rate * self.recipe.optimizer.weight_decay
        for name, value in self.frozen.items():
            if value.dtype != np.uint8:
                self.frozen[name] = (value * factor).astype(value.dtype)


@fault("https://github.com/Blaizzy/mlx-vlm/issues/845", "adapters.scale")
class AlphaIsNotDivided(ReferenceAdaptedNetwork):
    """The factor is alpha, without the division by the rank."""

    def factor(self) -> float:
        return self.adapters.alpha


@fault("https://github.com/Nerogar/OneTrainer/pull/1673", "adapters.quantized-equals-dequantized")
class ScalesOfAnotherColumn(ReferenceAdaptedNetwork):
    """A forward pass multiplies the codes by their neighbours' scales, since the codes have moved without them."""

    def values(self) -> dict[str, Array]:
        present = dict(self.frozen)
        self.frozen |= {n: np.roll(v, 1) for n, v in present.items() if n.endswith(".scale")}
        result = super().values()
        self.frozen = present
        return result


@fault("https://github.com/huggingface/peft/issues/3498", "adapters.merge")
class UnmergingLeavesTheWeights(ReferenceAdaptedNetwork):
    """Unmerging switches the adapters on again and leaves them in the weights."""

    def add_to_weights(self, sign: float) -> None:
        if sign > 0:
            super().add_to_weights(sign)


@fault("https://github.com/huggingface/peft/pull/1355", "adapters.merge")
class SecondMergeAddsAgain(ReferenceAdaptedNetwork):
    """A merge of merged weights adds the adapters once more."""

    def merge(self) -> None:
        self.is_merged = False
        super().merge()


@fault("https://github.com/cloneofsimo/lora/issues/26", "adapters.recompute")
class RecomputedBlockHasNoGradient(ReferenceAdaptedNetwork):
    """A recomputed block whose input needs no gradient gives its adapters none, and what follows it trains on."""

    def differentiate(self, inputs: Array, gradient: Array) -> dict[str, Array]:
        gradients, last = super().differentiate(inputs, gradient), f"{self.layers[-1]}."
        return {n: v for n, v in gradients.items() if self.recipe.recompute is None or n.startswith(last)}


@fault("https://github.com/huggingface/lerobot/issues/3459", "adapters.resume")
class ResumeBeginsWithNewAdapters(ReferenceAdaptedNetwork):
    """A load restores the optimizer's moments and leaves the adapters as they were made."""

    def take(self, state: Mapping[str, Any]) -> None:
        super().take({name: value for name, value in state.items() if name != "own"})


@fault("https://github.com/ARahim3/mlx-tune/issues/15", "adapters.save-changes-nothing")
class SaveMergesIntoCodes(ReferenceAdaptedNetwork):
    """A save merges the adapters into the stored weights, which are rounded again, and takes them out afterwards."""

    def save(self, path: Path) -> None:
        self.merge()
        super().save(path)
        self.unmerge()


@fault("https://github.com/vllm-project/vllm/issues/34186", "adapters.foreign-file")
class KeysThatDoNotFitAreSkipped(ReferenceAdaptedNetwork):
    """A load takes the arrays that fit, and leaves the others as they were made."""

    def match(self, saved: Mapping[str, Array]) -> dict[str, Array]:
        fits = {n: v for n, v in saved.items() if n in self.own and v.shape == self.own[n].shape}
        return {**self.own, **fits}


@fault("https://github.com/huggingface/peft/pull/736", "adapters.modules-to-save")
class SwitchedOffUsesTheCopy(ReferenceAdaptedNetwork):
    """While adapters are switched off, a layer that trains in full still uses its copy, not the original."""

    def predict_base(self, inputs: Array) -> Array:
        copies = {name: value for name, value in self.values().items() if name[-2:] not in (".a", ".b")}
        return self.forward(inputs, copies).astype(np.float32)
