"""The rate that prodigy and dadapt_adamw estimate is 0/0 while every gradient was zero, and weights become NaN."""

import sys

import jax.numpy as jnp
import optax

seen = {}
for make in (optax.contrib.prodigy, optax.contrib.dadapt_adamw):
    optimizer = make()
    weight = jnp.ones(1)
    state = optimizer.init(weight)
    for _ in range(2):
        update, state = optimizer.update(jnp.zeros(1), state, weight)
        weight = optax.apply_updates(weight, update)
    seen[make.__name__] = float(weight[0])
print("expected: 1.0, a gradient of zero moves nothing")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {1.0} else 1)
