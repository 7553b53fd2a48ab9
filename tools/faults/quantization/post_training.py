"""Faults of models that are quantized after training."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.contract import LinearRule, Quantized, QuantRule
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from tools.faults import fault


@fault("https://github.com/Xilinx/brevitas/pull/341", "quantization.weights-as-declared")
class OneScaleForAllColumns(ReferenceQuantizedModel):
    """All columns of a weight take their scale from the largest."""

    def converted(self, name: str, weight: Array) -> dict[str, Array]:
        stored = super().converted(name, weight)
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
    """Pairs of products are added up in sixteen bits, which saturate."""

    def summed(self, inputs: Array, weight: Array) -> Array:
        total = np.zeros((len(inputs), weight.shape[1]), np.int64)
        for place in range(0, weight.shape[0], 2):
            total += np.clip(inputs[:, place : place + 2] @ weight[place : place + 2], -(2**15), 2**15 - 1)
        return total


@fault(
    "https://github.com/microsoft/onnxruntime/issues/8625",
    "quantization.linear-arithmetic",
    "quantization.dynamic-scale",
)
class RowsShareARange(ReferenceQuantizedModel):
    """The rows of a call share one range where each should have its own."""

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        scale, zero = super().input_range(name, inputs, rule)
        return (np.full_like(scale, scale.max()), zero) if scale.ndim else (scale, zero)


@fault("https://github.com/microsoft/onnxruntime/issues/10111", "quantization.dynamic-scale", "laws.quantized-models")
class RangeOnlyGrows(ReferenceQuantizedModel):
    """A dynamic range is the widest that any call had."""

    _widest = 0.0

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        scale, zero = super().input_range(name, inputs, rule)
        if self._rule.ranges == "calibration":
            return scale, zero
        self._widest = max(self._widest, float(scale.max()))
        return np.full_like(scale, self._widest), zero


@fault("https://github.com/tensorflow/tensorflow/issues/44114", "quantization.calibration-needed")
class InventsARange(ReferenceQuantizedModel):
    """Without calibration data every range is taken to be from -1 to 1."""

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
    """The range of a layer is that of the last batch."""

    def ranges(self, seen: Sequence[tuple[Array, Array]]) -> Array:
        return super().ranges(seen[-1:])


@fault("https://github.com/pytorch/pytorch/issues/23838", "quantization.calibrated-range")
class CalibratedWithoutZero(ReferenceQuantizedModel):
    """A calibrated range begins at the smallest value, though that is above zero."""

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
        each = [ReferenceQuantizedModel.code_range(self, (batch,), rule) for batch in batches]
        scale = each[0][0]
        for later, _ in each[1:]:
            scale += 0.1 * (later - scale)
        return scale, each[0][1]


@fault("https://github.com/huggingface/transformers/issues/45674", "quantization.only-what-was-asked")
class SkipsOnlyTheFirst(ReferenceQuantizedModel):
    """Of several layers to leave out only the first is."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        return super().chosen(list(skip)[:1])


@fault("https://github.com/pytorch/ao/issues/3867", "quantization.only-what-was-asked")
class UnknownNameIsIgnored(ReferenceQuantizedModel):
    """A layer to leave out that is not there is passed over."""

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
    """The float32 weight stays next to its codes."""

    def converted(self, name: str, weight: Array) -> dict[str, Array]:
        return super().converted(name, weight) | {f"float/{name}": weight}


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1391", "quantization.survives-saving")
class LoadsWhatItCan(ReferenceQuantizedModel):
    """A load takes what parts of a file it can read, and says nothing."""

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
    """Inputs and weights that should have eight bits have three."""

    def product(self, name: str, wide: Array, weight: Quantized) -> Array:
        codes = np.rint(weight.codes / 32) * 32
        return super().product(name, wide, Quantized(codes, weight.scale, weight.zero_point, weight.values))
