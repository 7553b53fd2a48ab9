"""tf.nn.log_softmax of bfloat16 rounds the sum of exponentials before its logarithm, so a sure class costs nothing."""

import math
import sys

import tensorflow as tf

expected = -math.log1p(math.exp(-6.0))
rounded = float(tf.cast(tf.constant(expected), tf.bfloat16))
seen = float(tf.nn.log_softmax(tf.constant([[6.0, 0.0]], tf.bfloat16))[0, 0])
print(f"expected: {expected:.6g}, in bfloat16 {rounded:.6g}, as the first log-probability of the logits (6, 0)")
print(f"seen: {seen:.6g}")
sys.exit(int(abs(seen - expected) > 2.0**-8 * abs(expected)))
