"""reduce_on_plateau takes a negative metric that never changes for one that improves, so the rate is never lowered."""

import sys

import jax.numpy as jnp
from optax.contrib import reduce_on_plateau

schedule = reduce_on_plateau(factor=0.5, patience=2)
weight = jnp.zeros(())
state = schedule.init(weight)
for _ in range(4):
    scale, state = schedule.update(jnp.ones(()), state, weight, value=-1.0)
expected, seen = "scale 0.5", f"scale {float(scale)}"
print("expected:", expected)
print("seen:    ", seen)
sys.exit(int(seen != expected))
