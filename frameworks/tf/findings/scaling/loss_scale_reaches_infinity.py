"""LossScaleOptimizer doubles its scale without a limit until it is infinite, and skips every update from then on."""

import sys

import keras
import tensorflow as tf

weight = keras.Variable(1.0)
inner = keras.optimizers.SGD(0.5)
optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**120, dynamic_growth_steps=1)


@tf.function
def step(slope: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(weight.value * slope)
    optimizer.apply(tape.gradient(loss, [weight.value]), [weight])


for _ in range(20):
    step(tf.constant(0.0))
for _ in range(20):
    step(tf.constant(1.0))
finite = "a finite" if float(optimizer.dynamic_scale) < float("inf") else "an infinite"
expected = "a finite scale, and gradients of 1 applied"
seen = f"{finite} scale, and gradients of 1 {'skipped, each of 20' if float(weight) == 1.0 else 'applied'}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
