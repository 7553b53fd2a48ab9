"""SGD of Keras moves a float64 weight by a momentum of the float32 number that is nearest to 0.9."""

import sys

import keras
import tensorflow as tf

weight = keras.Variable([0.0], dtype="float64")
optimizer = keras.optimizers.SGD(1.0, momentum=0.9)
for gradient in (1.0, 0.0):
    optimizer.apply([tf.constant([gradient], tf.float64)], [weight])
seen = float(weight.numpy()[0])
print("expected: -1 - 0.9 = -1.9, to 15 digits")
print(f"seen: {seen!r}")
sys.exit(abs(seen + 1.9) > 1e-15)
