"""jmp.DynamicLossScale grows to 2^127 and then unscales every gradient to zero on a CPU."""

import sys

import jax
import jax.numpy as jnp
import jmp

scale = jmp.DynamicLossScale(jnp.float32(2.0**126), period=1)
scale = scale.adjust(jnp.array(True))
weight = jnp.float32(1.0)
gradient = scale.unscale(jax.grad(lambda w: scale.scale(w * 2.0**-10))(weight))
finite = bool(jmp.all_finite(gradient))

print("expected: a gradient of 2^-10, 0.0009765625, or a scale that does not grow beyond its use")
print(f"seen: a gradient of {float(gradient)} at a scale of 2^127, which all_finite calls {finite}")
sys.exit(float(gradient) != 2.0**-10)
