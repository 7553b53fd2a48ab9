"""tf.nn.log_softmax of bfloat16 rounds the sum of exponentials before its logarithm, so a sure class costs nothing."""

import math
import sys

import tensorflow as tf

exact = -math.log1p(math.exp(-6.0))
template = "{:.6g} as the first log-probability of the logits (6, 0) in bfloat16, {:.6g} in float64"
expected = template.format(float(tf.cast(tf.constant(exact), tf.bfloat16)), exact)
seen = template.format(float(tf.nn.log_softmax(tf.constant([[6.0, 0.0]], tf.bfloat16))[0, 0]), exact)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
