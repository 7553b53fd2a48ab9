"""Number formats and quantizers of a framework, and their rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from fixtures.arrays import Array
from frameworks.contract.capabilities import Capability
from frameworks.contract.rules import offered

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


@offered(Capability.FLOAT8_E4M3FN, several=True)
class NumberFormats(Protocol):
    """A framework's casts to 8-bit formats, and its products of integers."""

    def casts(self) -> Mapping[str, CastRule]:
        """The formats that are offered, by their names in `fixtures.narrow.NARROW`."""

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

    def packed(self, codes: Array, axis: Literal[0, 1]) -> Array:
        """The framework's storage of a matrix of integers from -8 to 7 (int8), two to a byte along the axis: uint8."""

    def unpacked(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        """The integers (int8) that are stored, `length` of them along the axis."""


@offered(Capability.INT8_TENSOR, several=True)
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
