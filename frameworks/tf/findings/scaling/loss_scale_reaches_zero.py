"""LossScaleOptimizer halves its scale without a floor until it is zero, and the next finite step makes weights NaN."""

import sys

import keras
import tensorflow as tf

weight = keras.Variable(1.0)
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))


@tf.function
def step(slope: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(weight.value * slope)
    optimizer.apply(tape.gradient(loss, [weight.value]), [weight])


for _ in range(200):
    step(tf.constant(float("inf")))
step(tf.constant(1.0))
template = "weight {} after 200 overflows and a gradient of 1 at the rate 0.5"
expected, seen = template.format(0.5), template.format(float(weight))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
