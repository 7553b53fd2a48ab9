"""On a CPU without AVX-512 VNNI softmax of bfloat16 rounds differences, exponentials and sums on the way."""

import math
import sys

import tensorflow as tf

logits = tf.constant([[60.0, 0.12109375]], tf.bfloat16)
exact = math.exp(0.12109375 - 60.0)
expected = float(tf.cast(tf.constant(exact), tf.bfloat16))
seen = float(tf.nn.softmax(logits)[0, 1])
print(f"expected: {expected:.3g} as the second probability of the logits (60, 0.12109375), {exact:.3g} in float64")
print(f"seen: {seen:.3g} as the second probability of the logits (60, 0.12109375), {exact:.3g} in float64")
sys.exit(int(seen != expected))
