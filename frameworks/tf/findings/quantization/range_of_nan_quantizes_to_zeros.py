"""Without oneDNN tf.quantization.quantize turns values with a range of NaN into zeros."""

import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import tensorflow as tf

values = tf.constant([-3.0, -1.0, float("nan"), 1.0, 5.0])
lowest, highest = tf.reduce_min(values), tf.reduce_max(values)
coded = tf.quantization.quantize(values, lowest, highest, tf.quint8, mode="MIN_FIRST")
seen = tf.quantization.dequantize(*coded, mode="MIN_FIRST").numpy().tolist()
print("expected: an error, or NaN in the place of NaN")
print(f"seen: {[float(value) for value in values]} come back as {seen}")
sys.exit(not any(value != value for value in seen))
