"""An optimizer with a loss_scale_factor divides gradients by Python's operator, which IndexedSlices do not have."""

import sys

import keras
import tensorflow as tf

table = keras.Variable([[1.0], [2.0]])
optimizer = keras.optimizers.SGD(0.5, loss_scale_factor=4.0)
expected = "table 1 and 1.5 after a gradient of 1 for its second row"
with tf.GradientTape() as tape:
    loss = optimizer.scale_loss(tf.reduce_sum(tf.gather(table.value, [1])))
try:
    optimizer.apply(tape.gradient(loss, [table.value]), [table])
    first, second = (f"{value:g}" for value in table.numpy().ravel())
    seen = f"table {first} and {second} after a gradient of 1 for its second row"
except Exception as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
