"""global_clipnorm stacks the norms of all gradients and multiplies each by one factor, so two formats raise."""

import sys

import keras
import tensorflow as tf

weights = [keras.Variable(0.0, dtype="float32"), keras.Variable(0.0, dtype="float64")]
optimizer = keras.optimizers.SGD(1.0, global_clipnorm=1.0)
expected = "-0.600000 and -0.800000"
try:
    optimizer.apply([tf.constant(3.0), tf.constant(4.0, tf.float64)], weights)
    seen = " and ".join(f"{float(weight):.6f}" for weight in weights)
except Exception as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
print(f"expected: {expected}, the gradients 3 in float32 and 4 in float64 clipped to the norm 1")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
