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
    """Marks a class that `Framework.rule` takes.

    Args:
        several: further capabilities declare parts of it, so that a framework without this one may offer it.
    """

    def mark(kind: K) -> K:
        _OFFERED[kind] = capability, several
        return kind

    return mark


def offer_of(kind: type) -> tuple[Capability, bool]:
    """The capability of a class, and whether there are several.

    Raises:
        KeyError: the class is not marked.
    """
    return _OFFERED[kind]


Ties = Literal["even", "away", "up"]
"""Where a value half-way between two integers goes: to the even one, away from zero, or up."""


@dataclass(frozen=True)
class CastRule:
    """How a cast to a narrow format treats values out of range, as documented by the framework.

    Attributes:
        overflow: finite values that round beyond the largest: the largest, NaN, or infinity.
        infinity: the same of an infinite value.
    """

    overflow: Literal["saturate", "nan", "inf"]
    infinity: Literal["saturate", "nan", "inf"]


@dataclass(frozen=True)
class QuantRule:
    """How values become integer codes, as the framework documents it: code = clip(round(value / scale) + zero point).

    Attributes:
        low, high: the first and last code.
        divisor: scale = max(|values|) / divisor if symmetric, else (max − min) / divisor of a range that contains 0.
        symmetric: whether the zero point is 0.
        axis: over which axis of a matrix a range is taken, None for one range of the whole matrix.
        group: how many values along the axis share a range, 0 for all.
        ties: where what is half-way between two codes goes.
        rounds: the quotient, or its sum with the zero point, which at an odd one differs half-way.
        epsilon: added to max(|values|), or to max − min, before it is divided.
        smallest_scale: the scale is never below it.
        unit_below: a scale that would be below it is 1 instead.
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
        axis: along which axis of a matrix scales are listed, None for one scale.
        ties: where a quotient half-way between two codes goes.
        gradient: which entries pass their gradient on: those whose rounded code needs no clipping, those inside the
            closed range, or all of them.
        nan: whether NaN stays, or comes out as a number.
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
        scale, zero_point: float64 and int32, broadcastable to that shape; the scale is the framework's own number, or
            computed from it in float64 where the framework keeps another one, such as its reciprocal.
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
        """The framework's product of two matrices of int8, (n, k) and (k, m), in int32."""

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        """The framework's product, float32, of two matrices of codes (uint8), (n, k) and (k, m), each in its format.

        Raises:
            Unsupported: FLOAT8_PRODUCTS, if it multiplies no such formats.
        """

    def pack(self, codes: Array, axis: Literal[0, 1]) -> Array:
        """The framework's storage of a matrix of integers from -8 to 7 (int8), two to a byte along the axis: uint8."""

    def unpack(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        """The integers (int8) that are stored, `length` of them along the axis."""


@register_rule(Capability.INT8_TENSOR, several=True)
class Quantizers(Protocol):
    """A framework's quantizers, each by a name that is a `quantization.` capability too."""

    def rules(self) -> Mapping[str, QuantRule]:
        """The quantizers that are offered, such as "int8-tensor"."""

    def fake_rules(self) -> Mapping[str, FakeRule]:
        """The fake quantizers that are offered, such as "fake-int8-tensor"."""

    def quantize(self, name: str, values: Array) -> Quantized:
        """The values, a float32 matrix, in the codes of the range that they have themselves."""

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        """What fake quantization makes of a float32 matrix, and the gradient of the result's sum with respect to it.

        `scale` is float32 and `zero_point` int32, with shape (1,) or one entry for each place along the rule's axis.
        """


@register_rule(Capability.ADAM_8BIT)
@dataclass(frozen=True, eq=False)
class EightBitRule:
    """The values of codes, in units of their block's absmax.

    Attributes:
        first: the slot of the first moment, as `Trainer.optimizer_state` calls it.
        second: that of the second moment.
        first_codes: value of each code of the first moment, (256,) float32, from -1 to 1.
        second_codes: the same of the second moment, none of them negative.
    """

    first: str
    second: str
    first_codes: Array
    second_codes: Array


@dataclass(frozen=True)
class LinearRule:
    """The computation of a quantized dense layer, inputs · weight + bias, as documented by the framework.

    Inputs and weight are quantized by their rules; the product is exact, or a float32 product of dequantized values;
    the bias is added in float32.

    Attributes:
        weight: the rule of the weight (inputs, outputs).
        inputs: the rule of what comes in, a matrix (rows, inputs); None where it stays float32.
        outputs: the rule of what comes out, a matrix (rows, outputs); None where it is float32.
        ranges: of inputs and outputs: those of the present call, or those that calibration saw.
        heads: whether the model's last layer, its heads, is quantized too.
        operands: the format that the weight, and inputs that have codes, are cast to before ranges are taken.
        outliers: a column of the inputs in which a magnitude, after that cast, reaches it has no codes in any row of
            the call: unquantized, it multiplies the dequantized weight.
        without: what ranges of inputs leave out: whole columns that have no codes, or the values alone that reach it.
        smallest: weights of fewer entries stay as they are, and so do their layers.
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
    """Scale and zero point by which the inputs or the outputs of a layer are quantized: float64 and an integer."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class Calibrated:
    """The calibrated ranges of a dense layer; `outputs` is None if the layer's results are float32."""

    inputs: CodeRange
    outputs: CodeRange | None


class QuantizedModel(Protocol):
    """A model whose dense layers are quantized. Dense layers have the names of their weights, such as "1.weight"."""

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
            Exception: the framework's own, if the files are not such a model; this model is then unchanged.
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
            calibration: batches of samples that ranges are taken from, where the technique wants them.
            skip: dense layers, by the names of their weights, that stay as they are.
        Raises:
            Exception: the framework's own, where ranges are wanted and `calibration` is empty.
            ValueError: the model has no dense layer of a name in `skip`.
        """


@register_rule(Capability.QAT)
@dataclass(frozen=True)
class QatRule:
    """The computation of QAT dense layers, as documented by the framework.

    Inputs, weight and outputs are fake-quantized; the product is float32. The
    weight's ranges are those that it has; the others follow the lowest and the highest value by a moving average whose
    first batch is taken whole.

    Attributes:
        linear: the rules of weight, inputs and outputs, and those of the model that it is converted to.
        average: the share of a new batch in the ranges of inputs and outputs.
        gradient: which entries pass their gradient on, as in `FakeRule`.
    """

    linear: LinearRule
    average: float
    gradient: Literal["codes", "range", "everywhere"] = "codes"


@register_rule(Capability.QAT)
class CalibratedRanges(dict[str, Calibrated]):
    """The ranges of the dense layers that a training pass has reached, by the names of their weights."""


Operand = Literal["input", "kernel", "gradient"]
"""Cast operands: inputs, kernel, and output gradient."""


@dataclass(frozen=True)
class DelayedRule:
    """How scales follow the values of earlier steps, as the framework documents it.

    A scale is the maximum of the amax history, divided by the largest number of the format. It does not change while
    the maximum is 0 or not finite, and is 1 before any step. Values are clipped to the format's range.

    Attributes:
        operands: the format of inputs and kernel, a name in `fixtures.arrays.NARROW`.
        gradients: the format of the output's gradient.
        lag: age in steps of the newest value that a step's scale may depend on.
    """

    operands: str
    gradients: str
    lag: Literal[1, 2]


@register_rule(Capability.FLOAT8_TRAINING)
@dataclass(frozen=True)
class Float8Rule:
    """Products of dense layers, including float32 heads, in float8 training by delayed scaling.

    Each has a product of its own; a step is a window. Gradients pass through casts as they are, those of clipped values
    too. The bias is added after the product, and its gradient is not cast.

    Attributes:
        product: formats and lag.
        skipped: whether the amax history moves with a window whose update an overflow skips.
        mean: whose mean loss the gradients that are cast belong to, where a window has several micro-batches.
    """

    product: DelayedRule
    skipped: Literal["stays", "moves"] = "stays"
    mean: Literal["window", "micro-batch"] = "window"


@dataclass(frozen=True)
class AmaxHistory:
    """The delayed-scaling state of one operand.

    Attributes:
        scale: a value is its code times this scale; the stored value, which does not yet include the last step.
        amax: the amax history, in any order.
    """

    scale: float
    amax: Array


@dataclass(frozen=True)
class PassResult:
    """Results of forward and backward of one micro-batch.

    Attributes:
        output: (n, m), float32.
        input_gradient: (n, k), float32.
        kernel_gradient: (k, m), float32.
    """

    output: Array
    input_gradient: Array
    kernel_gradient: Array


class DelayedProduct(Protocol):
    """The product of inputs and a constant kernel, both cast by scales that follow earlier steps."""

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
