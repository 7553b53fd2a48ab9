"""LossScaleOptimizer doubles its scale without a limit until it is infinite, and every update after that is skipped."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
import jax.numpy as jnp
import keras

weight = keras.Variable(1.0)
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), dynamic_growth_steps=1)
optimizer.build([weight])
values, state = [weight.value], [variable.value for variable in optimizer.variables]
for _ in range(150):
    values, state = optimizer.stateless_apply(state, [jnp.float32(0.0)], values)
scale = next(
    own for variable, own in zip(optimizer.variables, state, strict=True) if variable is optimizer.dynamic_scale
)
template = "a finite loss scale after 150 finite steps with a growth interval of 1: {}"
expected, seen = template.format(True), template.format(bool(jnp.isfinite(scale)))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
