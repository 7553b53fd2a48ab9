"""With oneDNN tf.quantization.quantize rounds after it subtracts the range's minimum, also in mode MIN_FIRST."""

import sys

import tensorflow as tf

values = tf.constant([2.0, -1.0, 3.0, 0.0])
codes, lowest, highest = tf.quantization.quantize(values, -1.0, 3.0, tf.quint8, mode="MIN_FIRST")
seen = tf.cast(codes, tf.int32).numpy().tolist()
restored = tf.quantization.dequantize(codes, lowest, highest, mode="MIN_FIRST").numpy().tolist()

print("expected: [192, 0, 255, 64], for round(2 * 63.75) - round(-1 * 63.75) = 128 + 64")
print(f"seen: {seen}, which are restored as {restored}")
sys.exit(seen[0] != 192)
