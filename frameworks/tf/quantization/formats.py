"""TensorFlow's casts to 8-bit formats, integer matmuls and quantizers, with their declared rules."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from frameworks.base import BaseFormats
from frameworks.contract import Capability, CastRule, FakeRule, Quantized, QuantRule
from frameworks.tf.core.steps import compile_function

_CASTS: Mapping[str, CastRule] = MappingProxyType(
    {"float8_e4m3fn": CastRule("nan", "nan"), "float8_e5m2": CastRule("inf", "inf")}
)
_COMPILED: Mapping[str, CastRule] = {
    name: CastRule("nan", "nan")
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(tf.dtypes.experimental, name)
}
"""Formats that XLA alone casts to."""


class TensorFlowFormats(BaseFormats):
    """`tf.cast` and `tf.matmul` in one mode, on the device with TensorFlow's name `device`.

    `tf.bitcast` takes no float8, so codes are read from the tensor's NumPy array, which has ml_dtypes' format.
    """

    def __init__(self, mode: str, device: str) -> None:
        self._mode = mode
        self._place = device

    def casts(self) -> Mapping[str, CastRule]:
        return {**_CASTS, **_COMPILED} if self._mode == "xla" else _CASTS

    def encode(self, values: Array, format_name: str) -> Array:
        return self._cast(values, tf.as_dtype(format_name)).view(np.uint8)

    def decode(self, codes: Array, format_name: str) -> Array:
        stored = np.dtype(getattr(ml_dtypes, format_name, format_name))
        return self._cast(codes.view(stored), tf.float32)

    def integer_product(self, a: Array, b: Array) -> Array:
        with tf.device(self._place):
            product = compile_function(lambda x, y: tf.matmul(x, y, output_type=tf.int32), self._mode)
            return np.array(product(tf.constant(a), tf.constant(b)).numpy())

    def pack(self, codes: Array, axis: Literal[0, 1]) -> Array:
        stored, _, _ = keras.quantizers.pack_int4(tf.constant(codes), axis=axis)
        return np.array(stored).view(np.uint8)

    def unpack(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        return np.array(keras.quantizers.unpack_int4(tf.constant(stored.view(np.int8)), length, axis=axis))

    def _cast(self, values: Array, to: tf.DType) -> Array:
        with tf.device(self._place):
            cast = compile_function(lambda x: tf.cast(x, to), self._mode)
            return np.array(cast(tf.constant(values)).numpy())


def packing() -> tuple[Capability, ...]:
    """Whether this version of Keras packs 4-bit integers two to a byte."""
    return (Capability.INT4_PACKING,) if hasattr(keras.quantizers, "pack_int4") else ()


EPSILON = 1e-7
"""Keras' default epsilon of ranges: `keras.config.epsilon()` at import."""


def eight_bits(axis: Literal[0, 1] | None) -> QuantRule:
    return QuantRule(-127, 127, 127.0, axis=axis, epsilon=EPSILON)


_GROUPS = {"int4-group": QuantRule(-8, 7, 15.0, symmetric=False, axis=0, group=32, epsilon=EPSILON)}
"""Quantizers that Keras 3.13 lacks."""

_CODE_RULES: Mapping[str, QuantRule] = MappingProxyType(
    {"int8-tensor": eight_bits(None), "int8-row": eight_bits(1), "int8-column": eight_bits(0)}
    | (_GROUPS if hasattr(keras.quantizers, "abs_max_quantize_grouped_with_zero_point") else {})
)
_AFFINE = {"uint8-tensor": QuantRule(0, 255, 255.0, symmetric=False, ties="away")}
"""`tf.quantization.quantize`, which XLA does not compile."""
_FAKE_RULES: Mapping[str, FakeRule] = MappingProxyType(
    {
        "fake-int8-tensor": FakeRule(-127, 127, ties="up", gradient="range"),
        "fake-int8-column": FakeRule(-127, 127, axis=0, ties="up", gradient="range"),
        "fake-uint8-tensor": FakeRule(0, 255, ties="up", gradient="range"),
        "fake-int4-tensor": FakeRule(-7, 7, ties="up", gradient="range"),
    }
)


class TensorFlowQuantizers:
    """`keras.quantizers` and `tf.quantization` in one mode, on the device with TensorFlow's name `device`.

    Keras has no call of its own for the way back: codes are divided by the scale that it keeps, the reciprocal, and
    4-bit ones multiplied, as its dense layers do it. Groups are of weights, which Keras quantizes outside of every
    `tf.function`; its call does not work in one.
    """

    def __init__(self, mode: str, device: str) -> None:
        self._mode = mode
        self._place = device

    def rules(self) -> Mapping[str, QuantRule]:
        return _CODE_RULES if self._mode == "xla" else {**_CODE_RULES, **_AFFINE}

    def fake_rules(self) -> Mapping[str, FakeRule]:
        return _FAKE_RULES

    def quantize(self, name: str, values: Array) -> Quantized:
        rule = self.rules()[name]
        if name in _AFFINE:
            return self._in_range(values, rule)
        if rule.group:
            codes, scale, zero_point, restored = self._run(_make_grouped_quantizer(rule), "eager", values)
            return Quantized(codes.astype(np.int32), scale.astype(np.float64), zero_point.astype(np.int32), restored)
        codes, reciprocal, restored = self._run(_absolute(rule), self._mode, values)
        with np.errstate(divide="ignore"):
            scale = 1.0 / reciprocal.astype(np.float64)
        return Quantized(codes.astype(np.int32), scale, np.zeros(scale.shape, np.int32), restored)

    def _in_range(self, values: Array, rule: QuantRule) -> Quantized:
        """The values by `tf.quantization`.

        Raises:
            ValueError: TensorFlow refuses their range, as one of NaN.
        """
        try:
            codes, lowest, highest, restored = self._run(_affine, self._mode, values)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(error.message) from error
        scale = ((highest.astype(np.float64) - lowest) / rule.divisor).reshape(1, 1)
        usable = np.isfinite(scale) & (scale > 0.0)
        zero_point = np.rint(np.divide(-lowest, scale, out=np.zeros((1, 1)), where=usable))
        return Quantized(codes, scale, zero_point.astype(np.int32), restored)

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        rule = _FAKE_RULES[name]
        ends = [
            ((end - zero_point.astype(np.float64)) * scale.astype(np.float64)).astype(np.float32)
            for end in (rule.low, rule.high)
        ]
        if rule.axis is None:
            ends = [end.reshape(()) for end in ends]
        result, gradient = self._run(_fake(rule), self._mode, values, *ends)
        return result, gradient

    def _run(self, function: Callable[..., Any], mode: str, *arrays: Array) -> list[Array]:
        with tf.device(self._place):
            results = compile_function(function, mode)(*(tf.constant(array) for array in arrays))
            return [np.array(result.numpy()) for result in results]


def in_groups(codes: Any, scale: Any, zero: Any, group: Any) -> tuple[Any, Any, Any]:
    """Scale and zero point of each row's group, and restored values, as Keras' dense layers restore 4-bit codes."""
    step, shift = (keras.ops.take(values, group, axis=0) for values in (scale, zero))
    above = keras.ops.subtract(keras.ops.cast(codes, "float32"), keras.ops.cast(shift, "float32"))
    return step, shift, keras.ops.multiply(step, above)


def _absolute(rule: QuantRule) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """Codes, reciprocal scale and restored values by a symmetric rule."""
    axis = (0, 1) if rule.axis is None else rule.axis
    quantizer = keras.quantizers.AbsMaxQuantizer(axis=axis, value_range=(rule.low, rule.high))

    def quantize(values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        codes, reciprocal = quantizer(values)
        return codes, reciprocal, keras.ops.divide(keras.ops.cast(codes, "float32"), reciprocal)

    return quantize


def _affine(values: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Codes, both ends of the range, which contains 0, and restored values."""
    ends = [tf.minimum(tf.reduce_min(values), 0.0), tf.maximum(tf.reduce_max(values), 0.0)]
    coded, lowest, highest = tf.quantization.quantize(
        values, *ends, tf.quint8, mode="MIN_FIRST", ensure_minimum_range=0.0
    )
    return tf.cast(coded, tf.int32), lowest, highest, tf.quantization.dequantize(coded, lowest, highest, "MIN_FIRST")


def _make_grouped_quantizer(rule: QuantRule) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """Codes, scale and zero point of each value, and restored values, by the rule of groups along the columns."""

    def quantize(values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        codes, scale, zero = keras.quantizers.abs_max_quantize_grouped_with_zero_point(
            values, rule.group, value_range=(rule.low, rule.high)
        )
        return codes, *in_groups(codes, scale, zero, np.arange(values.shape[0]) // rule.group)

    return quantize


def _fake(rule: FakeRule) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]]:
    """Fake-quantized values and the gradient of their sum; symmetric codes are TensorFlow's narrow range."""
    quantizer = (
        tf.quantization.fake_quant_with_min_max_vars
        if rule.axis is None
        else tf.quantization.fake_quant_with_min_max_vars_per_channel
    )
    bits = (rule.high - rule.low + 1).bit_length() if rule.low < 0 else rule.high.bit_length()

    def quantize_with_gradient(values: tf.Tensor, lowest: tf.Tensor, highest: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = quantizer(values, lowest, highest, num_bits=bits, narrow_range=rule.low < 0)
        return result, tape.gradient(result, values)

    return quantize_with_gradient
