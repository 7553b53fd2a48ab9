"""Compiled by XLA for a CPU the maximum of values with NaN among them is a number, and abs_max_quantize codes NaN."""

import sys

import keras
import numpy as np
import tensorflow as tf


@tf.function(jit_compile=True)
def quantize_and_restore(values: tf.Tensor) -> tf.Tensor:
    codes, scale = keras.quantizers.abs_max_quantize(values, axis=-1)
    return keras.ops.cast(codes, "float32") / scale


values = tf.constant([[1.0, float("nan"), 2.0, 9.0]])
largest = tf.function(tf.reduce_max, jit_compile=True)(values).numpy()
seen = quantize_and_restore(values).numpy()[0, 1]
print("expected: the largest is nan, and NaN does not come back from abs_max_quantize as a number")
print(f"seen: the largest is {largest}, and NaN comes back as {seen}")
sys.exit(not (np.isnan(largest) and np.isnan(seen)))
