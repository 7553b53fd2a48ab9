"""On a CPU without AVX-512 VNNI a product of bfloat16 matrices is cut off, where a cast rounds to the nearest."""

import sys

import tensorflow as tf

a, b = tf.constant([[1.0078125]], tf.bfloat16), tf.constant([[1.75]], tf.bfloat16)
wide = tf.matmul(tf.cast(a, tf.float32), tf.cast(b, tf.float32))
expected, seen = float(tf.cast(wide, tf.bfloat16)[0, 0]), float(tf.matmul(a, b)[0, 0])
print(f"expected: {expected}, as {float(wide[0, 0])} in bfloat16")
print(f"seen: {seen}, as {float(wide[0, 0])} in bfloat16")
sys.exit(int(seen != expected))
