"""flax.serialization.from_bytes puts arrays of another shape and format into a model that has its own."""

import sys

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import serialization

x = jnp.ones((1, 4))
saved = nn.Dense(10, param_dtype=jnp.float16).init(jax.random.key(0), x)
own = nn.Dense(20).init(jax.random.key(0), x)
try:
    kernel = serialization.from_bytes(own, serialization.to_bytes(saved))["params"]["kernel"]
    seen = f"{kernel.shape} {kernel.dtype}"
except ValueError as error:
    seen = f"a refusal: {error}"

print("expected: a refusal, or (4, 20) float32, for of the target its shapes and dtypes are used")
print(f"seen: {seen}")
sys.exit(seen == "(4, 10) float16")
