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
seen = float(optimizer.dynamic_scale)
print("expected: a finite scale after 20 gradients of 0, and some of 20 gradients of 1 applied")
print(f"seen: a scale of {seen}, {20 if float(weight) == 1.0 else 'not 20'} of 20 gradients of 1 skipped")
sys.exit(int(seen == float("inf")))
