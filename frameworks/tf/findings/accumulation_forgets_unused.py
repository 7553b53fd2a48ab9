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
seen = float(used)
print("expected: -0.5, minus the mean of the gradients 1 and none (0) over two micro-batches at the rate 1")
print(f"seen: {seen} where the other variable moved to {float(always)}")
sys.exit(int(seen != -0.5))
