"""With gradient_accumulation_steps a Keras optimizer moves its average of the weights with every micro-batch."""

import sys

import keras
import tensorflow as tf

weight = keras.Variable(0.0)
optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=4)
for gradient in [0.0] * 4 + [-1.0] * 4 + [0.0] * 3:
    optimizer.apply([tf.constant(gradient)], [weight])
optimizer.finalize_variable_values([weight])
template = "an average of {} at momentum 0.5, after updates to the weights 0 and 1 and three quarters of a third window"
expected, seen = template.format(0.5), template.format(float(weight))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
