"""flax.serialization.from_bytes leaves out, without a word, the layers that the file has and the model has not."""

import sys

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import serialization

x = jnp.ones((1, 4))
saved = nn.Sequential([nn.Dense(4), nn.Dense(4)]).init(jax.random.key(0), x)
own = nn.Sequential([nn.Dense(4)]).init(jax.random.key(0), x)
try:
    seen = f"{sorted(serialization.from_bytes(own, serialization.to_bytes(saved))['params'])} restored"
except ValueError as error:
    seen = f"a refusal: {error}"

print(f"expected: a refusal, for the file holds {sorted(saved['params'])}")
print(f"seen: {seen}")
sys.exit(seen.endswith("restored"))
