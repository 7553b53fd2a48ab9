"""What a variable gathered in a window is lost where the window's last micro-batch has no gradient for it."""

import sys
import warnings

import keras
import tensorflow as tf

warnings.simplefilter("ignore")
used, always = keras.Variable(0.0, name="used"), keras.Variable(0.0, name="always")
optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
optimizer.apply([tf.constant(1.0), tf.constant(1.0)], [used, always])
optimizer.apply([None, tf.constant(1.0)], [used, always])
template = "weight {} after a window with the gradients 1 and none, at the rate 1"
expected, seen = template.format(-0.5), template.format(float(used))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
