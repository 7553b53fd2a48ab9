"""Adam casts its coefficients to the variable's format, where 1 - 0.999 may be 0 and its epsilon may be 0."""

import sys

import keras
import tensorflow as tf

seen = []
for name, slope in (("bfloat16", 1.0), ("float16", 0.0)):
    weight = keras.Variable(1.0, dtype=name)
    keras.optimizers.Adam(0.125, epsilon=1e-8).apply([tf.constant(slope, tf.as_dtype(name))], [weight])
    seen.append(f"{float(weight):g} in {name} after a gradient of {slope:g}")
expected = "weight 0.875 in bfloat16 after a gradient of 1, 1 in float16 after a gradient of 0"
seen = "weight " + ", ".join(seen)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
