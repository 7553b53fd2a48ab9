"""LossScaleOptimizer halves its scale without a floor until it is zero, and the next finite step makes weights NaN."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
import jax.numpy as jnp
import keras

weight = keras.Variable(1.0)
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
optimizer.build([weight])
values, state = [weight.value], [variable.value for variable in optimizer.variables]
for gradient in [jnp.inf] * 200 + [0.0]:
    values, state = optimizer.stateless_apply(state, [jnp.float32(gradient)], values)
template = "weight {} after 200 overflows and a gradient of 0"
expected, seen = template.format(1.0), template.format(float(values[0]))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
