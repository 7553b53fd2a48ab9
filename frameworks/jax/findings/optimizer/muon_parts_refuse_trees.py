"""optax.contrib.scale_by_muon raises for a tree of matrices by default, which is documented for such trees."""

import sys

import jax.numpy as jnp
import optax

params = {"a": jnp.eye(2), "b": jnp.ones((2, 3))}
optimizer = optax.contrib.scale_by_muon()
try:
    optimizer.update(params, optimizer.init(params))
    seen = "an update"
except ValueError as error:
    seen = f"ValueError: {str(error).splitlines()[0]}"

print("expected: an update, for weight_dimension_numbers=None stands for all parameters being matrices")
print(f"seen: {seen}")
sys.exit(seen != "an update")
