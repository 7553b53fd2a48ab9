"""global_clipnorm stacks the norms of all gradients and multiplies each by one factor, so two formats raise."""

import sys

import keras
import tensorflow as tf

weights = [keras.Variable(0.0, dtype="float32"), keras.Variable(0.0, dtype="float64")]
optimizer = keras.optimizers.SGD(1.0, global_clipnorm=1.0)
expected = "weights -0.600000 and -0.800000, for gradients 3 and 4 clipped to the norm 1"
try:
    optimizer.apply([tf.constant(3.0), tf.constant(4.0, tf.float64)], weights)
    first, second = (f"{float(weight):.6f}" for weight in weights)
    seen = f"weights {first} and {second}, for gradients 3 and 4 clipped to the norm 1"
except Exception as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
