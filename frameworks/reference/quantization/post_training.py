"""Post-training quantization and QAT. Each decision is a method, which faults override."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Flatten, Layer, LayerNorm, Model, dense_weights
from frameworks.contract import Calibrated, CodeRange, FakeRule, LinearRule, QatRule, Quantized, QuantRule
from frameworks.reference.core import checkpoint
from frameworks.reference.core.arithmetic import UNARY, Operations, Round, normalise
from frameworks.reference.core.tape import Tensor, plain
from frameworks.reference.quantization.formats import ReferenceFormats, ReferenceQuantizers

_SMALLEST = 2.0**-126  # the smallest normal float32
_COLUMN = QuantRule(-127, 127, 127.0, axis=0, smallest_scale=_SMALLEST)
_ROW = QuantRule(-127, 127, 127.0, axis=1, smallest_scale=_SMALLEST)
_TENSOR = QuantRule(0, 255, 255.0, symmetric=False, smallest_scale=_SMALLEST)
RULES: Mapping[str, LinearRule] = MappingProxyType(
    {
        "dynamic-int8": LinearRule(_COLUMN, _ROW),
        "static-int8": LinearRule(_COLUMN, _TENSOR, _TENSOR, ranges="calibration"),
        "weight-int8": LinearRule(_COLUMN),
        "weight-int4": LinearRule(QuantRule(-7, 7, 7.0, axis=0, group=32, smallest_scale=_SMALLEST)),
        "load-int8": LinearRule(_COLUMN, _ROW, operands="float16", outliers=6.0),
    }
)

_INITIAL_RANGE = np.array([np.inf, -np.inf])
"""The range (lowest, highest) of QAT before any value was observed."""

DenseLayer = Callable[[str, Array], Array]
"""Runs a dense layer: takes the name of its weight and an input matrix, and returns the output matrix."""
Ranges = MutableMapping[str, Array]
"""The observed lowest and highest value, by "PATH.inputs" or "PATH.outputs"."""


class ReferenceQuantizedModel:
    """A quantized model; `stored` holds all of its arrays.

    Ranges are calibrated on batches, or are `known` from QAT.
    """

    def __init__(
        self,
        rule: LinearRule,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Collection[str] = (),
        known: Mapping[str, Calibrated] | None = None,
    ) -> None:
        self._rule, self._model, self._shapes = rule, model, dense_weights(model)
        self._quantizers, self._formats = ReferenceQuantizers(), ReferenceFormats()
        if unknown := [name for name in skip if name not in self._shapes]:
            raise ValueError(f"no dense layer has the weight {unknown[0]!r}: one of {', '.join(self._shapes)}")
        if rule.ranges == "calibration" and not calibration and not known:
            raise ValueError("ranges are to be calibrated, and there is no batch to take them from")
        quantized = self.choose_layers(skip)
        self.stored = {name: np.array(value) for name, value in weights.items() if name not in quantized}
        for name in quantized:
            self.stored |= self.convert_weight(name, weights[name])
        if known:
            self.stored |= {f"ranges/{name}": _encode_ranges(known[name]) for name in quantized}
        elif rule.ranges == "calibration":
            self.stored |= self.observe_ranges(weights, calibration, quantized)

    def predict(self, inputs: Array) -> dict[str, Array]:
        return self._forward(inputs, self.linear)

    def layer(self, name: str, inputs: Array) -> Array:
        return self.linear(name, inputs)

    def weights(self) -> dict[str, Quantized | None]:
        return {name: self._weight(name) if f"codes/{name}" in self.stored else None for name in self._shapes}

    def unquantized_parameters(self) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.stored.items() if "/" not in name}

    def calibrated_ranges(self) -> dict[str, Calibrated]:
        ranges = {name[7:]: value for name, value in self.stored.items() if name.startswith("ranges/")}
        return {
            name: Calibrated(*(CodeRange(float(scale), int(zero)) for scale, zero in value.reshape(2, 2)))
            for name, value in ranges.items()
        }

    def stored_bytes(self) -> int:
        return sum(value.nbytes for value in self.stored.values())

    def save(self, path: Path) -> None:
        checkpoint.write(path, self.saved_arrays(), self._identity())

    def restore(self, path: Path) -> None:
        self.stored = self.load_arrays(checkpoint.read(path, self._identity(), self.stored))

    def choose_layers(self, skip: Collection[str]) -> list[str]:
        """The dense layers that are quantized."""
        large = [name for name, shape in self._shapes.items() if math.prod(shape) >= self._rule.smallest]
        return [name for name in large if name not in skip]

    def convert_weight(self, name: str, weight: Array) -> dict[str, Array]:
        """The stored arrays of a weight: codes, 4-bit ones packed two to a byte, and a scale for each range."""
        rule, wide = self._rule.weight, self.cast(weight).astype(np.float64)
        lowest, highest = self._quantizers.range_of(wide, rule)
        scale = self._quantizers.scale_of(lowest, highest, rule).astype(np.float32)
        codes = self._quantizers.codes(wide, scale.astype(np.float64), np.zeros(()), rule).astype(np.int8)
        stored = self._formats.pack(codes, 0) if rule.high < 8 else codes
        return {f"codes/{name}": stored, f"scale/{name}": scale[:: rule.group or 1]}

    def cast(self, operand: Array) -> Array:
        """A weight, or inputs, in the format from which codes are computed."""
        return operand.astype(self._rule.operands)

    def observe_ranges(
        self, weights: Mapping[str, Array], batches: Sequence[Array], quantized: Collection[str]
    ) -> dict[str, Array]:
        """Scale and zero point of the inputs and of the outputs of each layer that is quantized."""
        calls: dict[str, list[tuple[Array, Array]]] = {name: [] for name in self._shapes}

        def record_call(name: str, inputs: Array) -> Array:
            outputs = self._float(name, inputs, weights)
            calls[name].append((inputs, outputs))
            return outputs

        for batch in batches:
            self._forward(batch, record_call)
        return {f"ranges/{name}": self.ranges(calls[name]) for name in quantized}

    def ranges(self, calls: Sequence[tuple[Array, Array]]) -> Array:
        """Scale and zero point of a layer's inputs, then of its outputs, from each batch's ranges."""
        inputs, outputs = zip(*calls, strict=True)
        return np.array([self.code_range(inputs, self._rule.inputs), self.code_range(outputs, self._rule.outputs)])

    def code_range(self, batches: Sequence[Array], rule: QuantRule | None) -> tuple[float, float]:
        """Scale and zero point of the range of all values of all batches."""
        if rule is None:
            return 1.0, 0.0
        wide = np.concatenate([batch.reshape(-1) for batch in batches]).astype(np.float64)
        lowest, highest = self._quantizers.range_of(wide.reshape(1, -1), rule)
        scale = self._quantizers.scale_of(lowest, highest, rule)
        return float(scale[0, 0]), float(self._quantizers.zero_point_of(lowest, scale, rule)[0, 0])

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        """Scale and zero point of a layer's inputs: computed from this call, or calibrated."""
        if self._rule.ranges == "calibration":
            scale, zero = self.stored[f"ranges/{name}"][0]
            return np.array(scale), np.array(zero)
        lowest, highest = self._quantizers.range_of(inputs, rule)
        scale = self._quantizers.scale_of(lowest, highest, rule)
        return scale, self._quantizers.zero_point_of(lowest, scale, rule)

    def linear(self, name: str, inputs: Array) -> Array:
        """A dense layer's output for a matrix, float32."""
        if f"codes/{name}" not in self.stored:
            return self._float(name, inputs, self.stored)
        wide = inputs.astype(np.float64)
        with np.errstate(all="ignore"):
            product = self.product(name, wide, self._weight(name))
            result = (product + self.bias(name)).astype(np.float32)
            return result if self._rule.outputs is None else self.requantize(name, result, self._rule.outputs)

    def product(self, name: str, wide: Array, weight: Quantized) -> Array:
        """Inputs · weight: a product of integers if the inputs have codes, else with the dequantized weight."""
        if self._rule.inputs is None:
            return self.beside(wide, weight)
        cast = self.cast(wide).astype(np.float64)
        outliers = self.outliers(cast)
        codes, scale = self.input_codes(name, cast, outliers, self._rule.inputs)
        product = self.multiply_integers(codes, weight.codes.astype(np.int64)) * scale * weight.scale
        return product + self.beside(np.where(outliers, wide, 0.0), weight) if outliers.any() else product

    def input_codes(self, name: str, cast: Array, outliers: Array, rule: QuantRule) -> tuple[Array, Array]:
        """The codes of the inputs minus their zero point, and their scale; outlier columns are 0."""
        scale, zero = self.input_range(name, self.zero_outliers(cast, outliers), rule)
        codes = self._quantizers.codes(self.inliers(cast, outliers), scale, zero, rule) - zero
        return codes.astype(np.int64), scale

    def outliers(self, cast: Array) -> Array:
        """Mask of the input columns that have a magnitude at or above the outlier threshold."""
        return np.asarray((np.abs(cast) >= self._rule.outliers).any(axis=0))

    def zero_outliers(self, cast: Array, outliers: Array) -> Array:
        """The inputs for the computation of ranges, with outliers set to zero so that they widen no range."""
        return np.where(outliers, 0.0, cast)

    def inliers(self, cast: Array, outliers: Array) -> Array:
        """The inputs with outlier columns set to zero."""
        return np.where(outliers, 0.0, cast)

    def beside(self, wide: Array, weight: Quantized) -> Array:
        """The product of outlier columns with the dequantized weight."""
        return wide @ ((weight.codes - weight.zero_point) * weight.scale)

    def multiply_integers(self, inputs: Array, weight: Array) -> Array:
        """The product of two matrices of integers."""
        return inputs @ weight

    def bias(self, name: str) -> Array:
        """The bias that is added to a layer's product."""
        bias = self.stored.get(name.replace(".weight", ".bias"))
        return np.zeros(1) if bias is None else bias.astype(np.float64)

    def requantize(self, name: str, result: Array, rule: QuantRule) -> Array:
        """The outputs of a layer, quantized by its output range and dequantized."""
        scale, zero = self.stored[f"ranges/{name}"][1]
        codes = self._quantizers.codes(result.astype(np.float64), np.array(scale), np.array(zero), rule)
        return ((codes - zero) * scale).astype(np.float32)

    def saved_arrays(self) -> dict[str, Array]:
        """The arrays that a save of the model contains."""
        return self.stored

    def load_arrays(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """The model's arrays from a save."""
        return arrays

    def _weight(self, name: str) -> Quantized:
        rule, shape, stored = self._rule.weight, self._shapes[name], self.stored[f"codes/{name}"]
        codes = self._formats.unpack(stored, shape[0], 0) if rule.high < 8 else stored
        scale = self.stored[f"scale/{name}"].astype(np.float64)
        if rule.group:
            scale = np.repeat(scale, rule.group, axis=0)[: shape[0]]
        values = (codes * scale).astype(np.float32)
        return Quantized(codes.astype(np.int32), scale, np.zeros((1, 1), np.int32), values)

    def _float(self, name: str, inputs: Array, weights: Mapping[str, Array]) -> Array:
        product = inputs.astype(np.float64) @ weights[name].astype(np.float64)
        bias = weights.get(name.replace(".weight", ".bias"))
        return (product if bias is None else product + bias).astype(np.float32)

    def _forward(self, samples: Array, dense: DenseLayer) -> dict[str, Array]:
        x = samples.astype(np.float32)
        for index, layer in enumerate(self._model.layers[:-1]):
            x = self._after(layer, str(index), x, dense)
        last = len(self._model.layers) - 1
        return {head.name: dense(f"{last}.{head.name}.weight", x) for head in self._model.heads.heads}

    def _after(self, layer: Layer, path: str, x: Array, dense: DenseLayer) -> Array:
        match layer:
            case Dense():
                return dense(f"{path}.weight", x)
            case Activation(kind=kind):
                return np.asarray(UNARY[kind](x.astype(np.float64)), np.float32)
            case LayerNorm(epsilon=epsilon):
                centred, _, _ = normalise(x.astype(np.float64), (-1,), epsilon, lambda value, _=1: value)
                scale, shift = (self.stored[f"{path}.{part}"] for part in ("scale", "shift"))
                return np.asarray(centred * scale + shift, np.float32)
            case Flatten():
                return x.reshape(len(x), -1)
            case _:
                raise ValueError(f"quantized models have no {type(layer).__name__}")

    def _identity(self) -> str:
        return f"{self._rule} {self._model.layers} {self._model.sample}"


def _encode_ranges(ranges: Calibrated) -> Array:
    """The calibrated scale and zero point of inputs, then of outputs, as one array."""
    ends = (ranges.inputs, ranges.outputs or CodeRange(1.0, 0))
    return np.array([[end.scale, float(end.zero_point)] for end in ends])


class ReferencePostTraining:
    """Post-training quantization with the reference's own quantizers."""

    def __init__(self, model_class: type[ReferenceQuantizedModel] = ReferenceQuantizedModel) -> None:
        self._model_class = model_class

    def rules(self) -> Mapping[str, LinearRule]:
        return RULES

    def quantize(
        self,
        technique: str,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Sequence[str] = (),
    ) -> ReferenceQuantizedModel:
        return self._model_class(self.rules()[technique], model, weights, calibration, skip)


class QatLayers:
    """Dense layers with fake-quantized operands."""

    rule = QatRule(RULES["static-int8"], average=0.125)

    def __init__(self, ops: Operations) -> None:
        self.ops = ops
        self.quantizers = ReferenceQuantizers()

    def initial_statistics(self, model: Model) -> dict[str, Array]:
        """The initial ranges of a run."""
        paths = [name.removesuffix(".weight") for name in dense_weights(model)]
        return {f"{path}.{what}": _INITIAL_RANGE for path in paths for what in ("inputs", "outputs")}

    def dense(
        self, path: str, x: Tensor, weight: Tensor, bias: Tensor | None, ranges: Ranges, *, observes: bool
    ) -> Tensor:
        """The output of the layer at `path` for x; updates the ranges if `observes` is True."""
        rules = self.rule.linear
        quantized = self.quantize_by_range(f"{path}.inputs", x, rules.inputs, ranges, observes)
        result = self.ops.linear(quantized, self.weight(weight), bias)
        return self.quantize_by_range(f"{path}.outputs", result, rules.outputs, ranges, observes)

    def weight(self, weight: Tensor) -> Tensor:
        """The weight, fake-quantized by its own ranges."""
        lowest, highest = self.quantizers.range_of(weight.plain(), self.rule.linear.weight)
        return self.fake(weight, lowest, highest, self.rule.linear.weight)

    def quantize_by_range(self, name: str, x: Tensor, rule: QuantRule | None, ranges: Ranges, observes: bool) -> Tensor:
        """Inputs or outputs, fake-quantized by the observed range; unchanged before the first batch."""
        if rule is None:
            return x
        if observes and x.value.size:
            ranges[name] = self.update_range(ranges[name], x.plain())
        lowest, highest = ranges[name]
        return x if lowest > highest else self.fake(x, lowest, highest, rule)

    def update_range(self, known: Array, values: Array) -> Array:
        """The range after a batch, in float32: a moving average that starts with the first batch's range."""
        ends = np.array([values.min(), values.max()])
        if known[0] > known[1]:
            return ends
        return np.asarray(known + (self.rule.average * (ends - known)).astype(np.float32), np.float32).astype(
            np.float64
        )

    def fake(self, x: Tensor, lowest: Array, highest: Array, rule: QuantRule) -> Tensor:
        """Fake-quantized values; the gradient passes where `passes_on` is True."""
        scale, zero = self.codes_of(lowest, highest, rule)
        passes = FakeRule(rule.low, rule.high)

        def compute(value: Any, _: Round) -> Any:
            known = plain(value)
            with np.errstate(all="ignore"):
                unclipped = self.quantizers.round(known / scale) + zero
                values = (np.clip(unclipped, rule.low, rule.high) - zero) * scale
                inside = self.passes_on(known, unclipped, passes)
                return anp.where(inside, value + (values - known), values)

        return self.ops.apply("fake_quantize", compute, x)

    def codes_of(self, lowest: Array, highest: Array, rule: QuantRule) -> tuple[Array, Array]:
        """Scale, rounded to float32, and zero point of a range."""
        scale = self.quantizers.scale_of(np.asarray(lowest), np.asarray(highest), rule)
        scale = scale.astype(np.float32).astype(np.float64)
        return scale, self.quantizers.zero_point_of(np.asarray(lowest), scale, rule)

    def passes_on(self, values: Array, unclipped: Array, rule: FakeRule) -> Array:
        """Mask of the entries that pass their gradient on."""
        return self.quantizers.passes_on(values, unclipped, np.ones(()), np.zeros(()), rule)

    def observe_ranges(self, ranges: Ranges) -> dict[str, Calibrated]:
        """The ranges of the layers that have run in a training pass."""
        rules, calibrated = self.rule.linear, {}
        for name, (lowest, highest) in ranges.items():
            path, _, what = name.rpartition(".")
            if what == "inputs" and lowest <= highest and rules.inputs is not None:
                outputs = None if rules.outputs is None else self.code_range(ranges[f"{path}.outputs"], rules.outputs)
                calibrated[f"{path}.weight"] = Calibrated(self.code_range(ranges[name], rules.inputs), outputs)
        return calibrated

    def code_range(self, ends: Array, rule: QuantRule) -> CodeRange:
        """Scale and zero point of a range."""
        scale, zero = self.codes_of(ends[0], ends[1], rule)
        return CodeRange(float(scale), int(zero))
