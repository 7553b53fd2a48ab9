"""Compiled by XLA fake quantization adds the end of the range to k steps, so zero does not come back as zero."""

import sys

import tensorflow as tf


@tf.function(jit_compile=True)
def fake(values: tf.Tensor) -> tf.Tensor:
    end = tf.constant(127.0) * tf.constant(0.013)
    return tf.quantization.fake_quant_with_min_max_vars(values, -end, end, narrow_range=True)


seen = float(fake(tf.constant(0.0)))
print("expected: zero, which has a code of its own, comes back as 0.0")
print(f"seen: it comes back as {seen:.6g}")
sys.exit(seen != 0.0)
