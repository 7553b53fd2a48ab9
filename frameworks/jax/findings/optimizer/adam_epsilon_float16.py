"""optax.adam makes a float16 parameter NaN when its gradient is zero."""

import sys

import jax.numpy as jnp
import optax

weight = jnp.ones(1, jnp.float16)
optimizer = optax.adam(1e-3)
updates, _ = optimizer.update(jnp.zeros_like(weight), optimizer.init(weight), weight)
after = float(optax.apply_updates(weight, updates)[0])

print("expected: 1.0, for the update of a zero gradient is 0 / (sqrt(0) + 1e-8) = 0")
print(f"seen: {after}")
sys.exit(after != 1.0)
