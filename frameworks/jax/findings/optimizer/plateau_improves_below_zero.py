"""reduce_on_plateau with a metric of -1 that never improves, patience 2 and the default relative tolerance."""

import sys

import jax.numpy as jnp
from optax.contrib import reduce_on_plateau

schedule = reduce_on_plateau(factor=0.5, patience=2)
weight = jnp.zeros(())
state = schedule.init(weight)
for _ in range(4):
    scale, state = schedule.update(jnp.ones(()), state, weight, value=-1.0)
print("expected:", expected := "scale 0.5")
print("seen:    ", seen := f"scale {float(scale)}")
sys.exit(int(seen != expected))
