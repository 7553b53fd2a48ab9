"""optax.adam squares a float16 gradient of 300 in float16: its second moment, 90, is infinite, and the weight stays."""

import sys

import jax.numpy as jnp
import optax

weight = jnp.ones(1, jnp.float16)
optimizer = optax.adam(2.0**-4)
updates, _ = optimizer.update(jnp.full_like(weight, 300.0), optimizer.init(weight), weight)
after = float(optax.apply_updates(weight, updates)[0])

print("expected: 0.9375, for Adam's first update is its rate of 1/16, and (1 - 0.999) * 300**2 = 90 is a float16")
print(f"seen: {after}")
sys.exit(after == 1.0)
