"""In a graph an optimizer counts an iteration though the step's matrix product raised and no weight was updated."""

import sys

import keras
import tensorflow as tf

layer = keras.layers.Dense(1)
layer.build((None, 3))
weights, optimizer = layer.trainable_variables, keras.optimizers.Adam()
optimizer.build(weights)


@tf.function(reduce_retracing=True)
def step(inputs: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(inputs))
    optimizer.apply(tape.gradient(loss, weights), weights)


step(tf.ones((2, 3)))
try:
    step(tf.ones((2, 4)))
    sys.exit("a batch that is too wide was taken")
except (ValueError, tf.errors.InvalidArgumentError):
    seen = f"iteration {int(optimizer.iterations)} after a step and a batch that is too wide"
expected = "iteration 1 after a step and a batch that is too wide"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
