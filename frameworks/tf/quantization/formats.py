"""TensorFlow's casts to 8-bit formats and integer matmuls."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from frameworks.base import BaseFormats
from frameworks.contract import Capability, CastRule
from frameworks.tf.core.steps import compiled

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
    """`tf.cast` and `tf.matmul` in one mode, on the device with TensorFlow's name `place`.

    `tf.bitcast` takes no float8, so codes are read from the tensor's NumPy array, which has ml_dtypes' format.
    """

    def __init__(self, mode: str, place: str) -> None:
        self._mode = mode
        self._place = place

    def casts(self) -> Mapping[str, CastRule]:
        return {**_CASTS, **_COMPILED} if self._mode == "xla" else _CASTS

    def encode(self, values: Array, format_name: str) -> Array:
        return self._cast(values, tf.as_dtype(format_name)).view(np.uint8)

    def decode(self, codes: Array, format_name: str) -> Array:
        stored = np.dtype(getattr(ml_dtypes, format_name, format_name))
        return self._cast(codes.view(stored), tf.float32)

    def integer_product(self, a: Array, b: Array) -> Array:
        with tf.device(self._place):
            product = compiled(lambda x, y: tf.matmul(x, y, output_type=tf.int32), self._mode)
            return np.array(product(tf.constant(a), tf.constant(b)).numpy())

    def packed(self, codes: Array, axis: Literal[0, 1]) -> Array:
        stored, _, _ = keras.quantizers.pack_int4(tf.constant(codes), axis=axis)
        return np.array(stored).view(np.uint8)

    def unpacked(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        return np.array(keras.quantizers.unpack_int4(tf.constant(stored.view(np.int8)), length, axis=axis))

    def _cast(self, values: Array, to: tf.DType) -> Array:
        with tf.device(self._place):
            cast = compiled(lambda x: tf.cast(x, to), self._mode)
            return np.array(cast(tf.constant(values)).numpy())


def packing() -> tuple[Capability, ...]:
    """Whether this version of Keras packs 4-bit integers two to a byte."""
    return (Capability.INT4_PACKING,) if hasattr(keras.quantizers, "pack_int4") else ()
