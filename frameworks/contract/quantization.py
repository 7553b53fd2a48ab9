"""Number formats, quantizers, quantized models and 8-bit state of a framework, and their rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.contract.capabilities import Capability

K = TypeVar("K", bound=type)

_OFFERED: dict[type, tuple[Capability, bool]] = {}


def register_rule(capability: Capability, *, several: bool = False) -> Callable[[K], K]:
    """Marks a class as one that `Framework.rule` accepts.

    Args:
        several: further capabilities declare parts of the rule, so that it may exist without this capability.
    """

    def mark(kind: K) -> K:
        _OFFERED[kind] = capability, several
        return kind

    return mark


def offer_of(kind: type) -> tuple[Capability, bool]:
    """The capability of a marked class, and its `several`.

    Raises:
        KeyError: the class is not marked.
    """
    return _OFFERED[kind]


Ties = Literal["even", "away", "up"]
"""Rounding of a value half-way between two integers: to the even one, away from zero, or up."""


@dataclass(frozen=True)
class CastRule:
    """The documented result of a cast to a narrow format for values out of range.

    Attributes:
        overflow: result for finite values that round beyond the largest: the largest value, NaN, or infinity.
        infinity: result for an infinite value, likewise.
    """

    overflow: Literal["saturate", "nan", "inf"]
    infinity: Literal["saturate", "nan", "inf"]


@dataclass(frozen=True)
class QuantRule:
    """The documented rule of a quantizer: code = clip(round(value / scale) + zero point).

    Attributes:
        low, high: the first and last code.
        divisor: scale = max(|values|) / divisor if symmetric, else (max − min) / divisor of a range that contains 0.
        symmetric: True if the zero point is 0.
        axis: axis of a matrix over which a range is computed, None for one range of the whole matrix.
        group: number of values along the axis that share a range, 0 for all.
        ties: rounding of a value half-way between two codes.
        rounds: the rounded value: the quotient, or its sum with the zero point. If that is odd, ties differ.
        epsilon: added to max(|values|), or to max − min, before the division by `divisor`.
        smallest_scale: lower bound of the scale.
        unit_below: a scale below this bound is replaced by 1.
    """

    low: int
    high: int
    divisor: float
    symmetric: bool = True
    axis: Literal[0, 1] | None = None
    group: int = 0
    ties: Ties = "even"
    rounds: Literal["quotient", "sum"] = "quotient"
    epsilon: float = 0.0
    smallest_scale: float = 0.0
    unit_below: float = 0.0


@dataclass(frozen=True)
class FakeRule:
    """Fake quantization: values are quantized and dequantized in one step with a defined gradient.

    Attributes:
        low, high: the first and last code.
        axis: axis of a matrix whose entries each have a scale, None for one scale.
        ties: rounding of a quotient half-way between two codes.
        gradient: the entries that pass their gradient on: those whose rounded code needs no clipping, those inside the
            closed range, or all.
        nan: the result for NaN: NaN, or a number.
    """

    low: int
    high: int
    axis: Literal[0, 1] | None = None
    ties: Ties = "even"
    gradient: Literal["codes", "range", "everywhere"] = "codes"
    nan: Literal["stays", "clamped"] = "stays"


@dataclass(frozen=True)
class Quantized:
    """Values in integer codes: value = (code − zero point) · scale.

    Attributes:
        codes: int32, of the values' shape.
        scale, zero_point: float64 and int32, broadcastable to that shape. A framework that stores another number than
            the scale, such as its reciprocal, has the scale computed from that in float64.
        values: dequantized by the framework itself, float32.
    """

    codes: Array
    scale: Array
    zero_point: Array
    values: Array


@register_rule(Capability.FLOAT8_E4M3FN, several=True)
class NumberFormats(Protocol):
    """A framework's casts to 8-bit formats, and its products of integers."""

    def casts(self) -> Mapping[str, CastRule]:
        """The formats that are offered, by their names in `fixtures.arrays.NARROW`."""

    def encode(self, values: Array, format_name: str) -> Array:
        """The framework's cast of `values` (float64, float32, float16 or bfloat16) to the format: its codes, uint8.

        "int8" is the cast to integers; its codes are the bytes of the integers.
        """

    def decode(self, codes: Array, format_name: str) -> Array:
        """The framework's cast of these codes (uint8) to float32."""

    def integer_product(self, a: Array, b: Array) -> Array:
        """The framework's product, int32, of two int8 matrices, (n, k) and (k, m)."""

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        """The framework's product, float32, of two matrices of codes (uint8), (n, k) and (k, m), each in its format.

        Raises:
            Unsupported: FLOAT8_PRODUCTS, if the framework does not multiply these formats.
        """

    def pack(self, codes: Array, axis: Literal[0, 1]) -> Array:
        """The framework's storage of a matrix of integers from -8 to 7 (int8), two to a byte along the axis: uint8."""

    def unpack(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        """Inverse of `pack`: the stored integers (int8), `length` of them along the axis."""


@register_rule(Capability.INT8_TENSOR, several=True)
class Quantizers(Protocol):
    """A framework's quantizers, each by a name that is a `quantization.` capability too."""

    def rules(self) -> Mapping[str, QuantRule]:
        """The quantizers that are offered, such as "int8-tensor"."""

    def fake_rules(self) -> Mapping[str, FakeRule]:
        """The fake quantizers that are offered, such as "fake-int8-tensor"."""

    def quantize(self, name: str, values: Array) -> Quantized:
        """A float32 matrix, quantized with the range of its own values."""

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        """The fake-quantized values of a float32 matrix, and the gradient of their sum with respect to the matrix.

        `scale` is float32 and `zero_point` int32, with shape (1,) or one entry for each place along the rule's axis.
        """


@register_rule(Capability.ADAM_8BIT)
@dataclass(frozen=True, eq=False)
class EightBitRule:
    """The values of codes, in units of their block's absmax.

    Attributes:
        first: slot of the first moment in `Trainer.optimizer_state`.
        second: slot of the second moment.
        first_codes: value of each code of the first moment, (256,) float32, from -1 to 1.
        second_codes: value of each code of the second moment, (256,) float32, none negative.
    """

    first: str
    second: str
    first_codes: Array
    second_codes: Array


@dataclass(frozen=True)
class LinearRule:
    """The documented computation of a quantized dense layer, inputs · weight + bias.

    Inputs and weight are quantized by their rules; the product is exact, or a float32 product of dequantized values;
    the bias is added in float32.

    Attributes:
        weight: the rule of the weight (inputs, outputs).
        inputs: the rule of the inputs (rows, inputs); None if they stay float32.
        outputs: the rule of the outputs (rows, outputs); None if they stay float32.
        ranges: source of the ranges of inputs and outputs: the present call, or calibration.
        heads: True if the model's last layer, its heads, is quantized too.
        operands: format to which the weight, and inputs that are quantized, are cast before ranges are computed.
        outliers: threshold of magnitudes after that cast. An input column with a magnitude at or above it is not
            quantized in any row of the call; it is multiplied by the dequantized weight.
        without: values that ranges of inputs leave out: whole outlier columns, or only the values at the threshold.
        smallest: layers whose weight has fewer entries are not quantized.
    """

    weight: QuantRule
    inputs: QuantRule | None = None
    outputs: QuantRule | None = None
    ranges: Literal["call", "calibration"] = "call"
    heads: bool = True
    operands: Literal["float32", "float16"] = "float32"
    outliers: float = math.inf
    without: Literal["columns", "values"] = "columns"
    smallest: int = 0


@dataclass(frozen=True)
class CodeRange:
    """Scale (float64) and zero point (integer) of the inputs or the outputs of a quantized layer."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class Calibrated:
    """The calibrated ranges of a dense layer; `outputs` is None if the layer's results are float32."""

    inputs: CodeRange
    outputs: CodeRange | None


class QuantizedModel(Protocol):
    """A model with quantized dense layers. A layer is named by its weight, such as "1.weight"."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        """The output of each head for samples (n, ...), float32, as in evaluation."""

    def layer(self, name: str, inputs: Array) -> Array:
        """The output of a single dense layer for a float32 matrix (rows, inputs): float32, (rows, outputs)."""

    def weights(self) -> Mapping[str, Quantized | None]:
        """The stored weight (inputs, outputs) of every dense layer; None if it is not quantized."""

    def unquantized_parameters(self) -> Mapping[str, Array]:
        """Every other parameter by canonical name, in its true format."""

    def calibrated_ranges(self) -> Mapping[str, Calibrated]:
        """The calibrated ranges of each quantized dense layer; empty if ranges are computed in each call."""

    def stored_bytes(self) -> int:
        """Bytes of all arrays that the model keeps: codes, scales, zero points and the other parameters."""

    def save(self, path: Path) -> None:
        """Writes the quantized model to the folder `path`, by the framework's own means."""

    def restore(self, path: Path) -> None:
        """Replaces this model by the saved one.

        Raises:
            Exception: the framework's own, if the files are not a saved model of this kind; this model is unchanged.
        """


@register_rule(Capability.DYNAMIC_INT8, several=True)
class PostTraining(Protocol):
    """A framework's post-training quantization. Techniques have the names of `quantization.` capabilities."""

    def rules(self) -> Mapping[str, LinearRule]:
        """The techniques that are offered, such as "dynamic-int8"."""

    def quantize(
        self,
        technique: str,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Sequence[str] = (),
    ) -> QuantizedModel:
        """The model with these weights, quantized.

        Models have dense layers, activations, layer norms and flattening.

        Args:
            calibration: batches of samples, for techniques with calibrated ranges.
            skip: names of the weights of dense layers that are not quantized.
        Raises:
            Exception: the framework's own, if the technique needs calibration and `calibration` is empty.
            ValueError: the model has no dense layer of a name in `skip`.
        """


@register_rule(Capability.QAT)
@dataclass(frozen=True)
class QatRule:
    """The documented computation of QAT dense layers.

    Inputs, weight and outputs are fake-quantized; the product is float32. The ranges of the weight are those of its
    present values. The ranges of inputs and outputs are moving averages of each batch's lowest and highest value, which
    start with those of the first batch.

    Attributes:
        linear: the rules of weight, inputs and outputs, in training and after conversion.
        average: weight of a new batch in the ranges of inputs and outputs.
        gradient: the entries that pass their gradient on, as in `FakeRule`.
    """

    linear: LinearRule
    average: float
    gradient: Literal["codes", "range", "everywhere"] = "codes"


@register_rule(Capability.QAT)
class CalibratedRanges(dict[str, Calibrated]):
    """The ranges of the dense layers that have run in a training pass, by the names of their weights."""


Operand = Literal["input", "kernel", "gradient"]
"""The cast operands of a product: its inputs, its kernel, and the gradient of its output."""


@dataclass(frozen=True)
class DelayedRule:
    """The documented rule by which delayed scaling computes scales from earlier steps.

    A scale is the maximum of the amax history, divided by the largest number of the format. It does not change while
    the maximum is 0 or not finite, and is 1 before any step. Values are clipped to the format's range.

    Attributes:
        operands: the format of inputs and kernel, a name in `fixtures.arrays.NARROW`.
        gradients: the format of the output's gradient, likewise.
        lag: age in steps of the newest amax that a step's scale depends on.
    """

    operands: str
    gradients: str
    lag: Literal[1, 2]


@register_rule(Capability.FLOAT8_TRAINING)
@dataclass(frozen=True)
class Float8Rule:
    """Products of dense layers, including float32 heads, in float8 training by delayed scaling.

    Each layer has its own amax histories; a step is a window. Casts pass gradients unchanged, also those of clipped
    values. The bias is added after the product, and its gradient is not cast.

    Attributes:
        product: formats and lag.
        skipped: True if a window whose update an overflow skips enters the amax history.
        mean: the mean loss to which the cast gradients belong if a window has several micro-batches.
    """

    product: DelayedRule
    skipped: Literal["stays", "moves"] = "stays"
    mean: Literal["window", "micro-batch"] = "window"


@dataclass(frozen=True)
class AmaxHistory:
    """The delayed-scaling state of one operand.

    Attributes:
        scale: the stored scale: value = code · scale. It does not yet include the last step.
        amax: the amax history, in any order.
    """

    scale: float
    amax: Array


@dataclass(frozen=True)
class PassResult:
    """Results of forward and backward of one micro-batch.

    Attributes:
        output: the product, (n, m), float32.
        input_gradient: gradient of the inputs, (n, k), float32.
        kernel_gradient: gradient of the kernel, (k, m), float32.
    """

    output: Array
    input_gradient: Array
    kernel_gradient: Array


class DelayedProduct(Protocol):
    """The product of inputs and a constant kernel, both cast with delayed scales."""

    rule: DelayedRule

    def train(self, *window: tuple[Array, Array]) -> tuple[PassResult, ...]:
        """One training step: forward and backward of each micro-batch, given as inputs (n, k) and gradient (n, m)."""

    def predict(self, inputs: Array) -> Array:
        """The product outside training, (n, m)."""

    def amax_histories(self) -> Mapping[Operand, AmaxHistory]:
        """The present delayed-scaling state."""


@register_rule(Capability.DELAYED_SCALING)
class DelayedProducts(Protocol):
    """Makes delayed-scaling products in 8-bit formats."""

    def __call__(self, kernel: Array, *, history: int, accumulation: int = 1) -> DelayedProduct:
        """A product with `kernel` (k, m), float32.

        Args:
            history: length of the amax history.
            accumulation: micro-batches in a training step.
        Raises:
            Unsupported: DELAYED_SCALING.
        """


@register_rule(Capability.FLOAT8_TRAINING)
class AmaxHistories(dict[str, Mapping[Operand, AmaxHistory]]):
    """The amax history and scales of each dense layer's operands in float8 training, by the name of its weight."""


@dataclass(frozen=True)
class DynamicScaleRule:
    """The documented products of dense layers whose operands are cast with the scales of the present call.

    An operand is multiplied by its scale, clipped to the format's range and cast; a float32 product of the values
    divided by the scales follows. The scale is the format's largest number divided by amax, in float64, and rounded to
    float32. It is computed again for each of the three products.

    Attributes:
        operands: the format of inputs and kernel, a name in `fixtures.arrays.NARROW`.
        gradients: the format of the output's gradient, likewise.
        scale_extent: values of an operand that share amax: all, or those that one entry of the product sums over.
        kernel_extent: the same of the kernel in the product that gives the gradient of the inputs.
        scale_rule: the quotient, or the next power of two that is not larger.
        kernel_gradient: operands of the product that gives the gradient of the kernel: cast, or in float32.
        smallest: the amax below which the scale no longer follows.
    """

    operands: str
    gradients: str
    scale_extent: Literal["tensor", "row"]
    kernel_extent: Literal["tensor", "row"]
    scale_rule: Literal["exact", "power-of-two-down"]
    kernel_gradient: Literal["cast", "float32"] = "cast"
    smallest: float = 0.0


@register_rule(Capability.DYNAMIC_SCALES)
class DynamicProducts(Protocol):
    """Products of a dense layer with dynamic scales, by recipes of the framework."""

    def rules(self) -> Mapping[str, DynamicScaleRule]:
        """The recipes that are offered: "tensorwise", "rowwise" and "rowwise_with_gw_hp"."""

    def multiply(self, name: str, inputs: Array, kernel: Array, gradient: Array) -> PassResult:
        """Forward and backward of a layer without bias: inputs (n, k), kernel (k, m), output's gradient (n, m)."""


@dataclass(frozen=True)
class BlockScaleRule:
    """The documented cast of blocks of values along the last axis; the codes of a block share a stored scale.

    A code is the one nearest to value / scale, half-way the even one, and the last one beyond the range.

    Attributes:
        element: the format of the codes, "float8_e4m3fn" or "float4_e2m1fn".
        block: number of values in a block.
        scale_format: the format of the stored scale, a name in `fixtures.arrays.NARROW`.
        scale_rule: the scale of a block. "floor": the power of two of amax, over that of the element's largest number;
            "ceil": the same of the next power of two that is not smaller than amax; "even": as "floor", after amax is
            rounded to the element's fraction, half-way up; "rceil": the least power of two that is not smaller than
            amax / largest; "exact": the nearest number to amax / largest, at least the scale format's smallest normal.
        infinity_becomes: the result for an infinite value.
        levels: 2 if block scales are relative to a scale of the tensor, which is its amax divided by the product of the
            largest numbers of both formats, in float32.
    """

    element: Literal["float8_e4m3fn", "float4_e2m1fn"]
    block: int
    scale_format: Literal["float8_e8m0fnu", "float8_e4m3fn"]
    scale_rule: Literal["floor", "ceil", "even", "rceil", "exact"]
    infinity_becomes: Literal["infinity", "nan", "largest"]
    levels: Literal[1, 2] = 1


@register_rule(Capability.BLOCK_SCALES)
class BlockScales(Protocol):
    """Casts of matrices in blocks, each by a name."""

    def rules(self) -> Mapping[str, BlockScaleRule]:
        """The casts that are offered: "mxfp8-floor", "-ceil", "-even" and "-rceil", "nvfp4" and "nvfp4-tensor"."""

    def cast(self, name: str, values: Array) -> tuple[Array, Array]:
        """Stored scales and dequantized values of a float32 matrix whose rows are whole numbers of blocks.

        Scales are (rows, blocks), float64, relative to that of the tensor; values are float32, by the framework itself.
        """


@register_rule(Capability.STOCHASTIC_ROUNDING)
class StochasticRounding(Protocol):
    """Rounds float32 values to bfloat16: up or down at random, by the next numbers of a seeded stream."""

    def __call__(self, values: Array) -> Array:
        """The rounded values, float32, of the same shape."""
