"""flax.serialization.from_bytes takes an array with a flipped bit for what was saved."""

import sys

import jax.numpy as jnp
from flax import serialization

weights = {"kernel": jnp.ones(1024)}
content = bytearray(serialization.to_bytes(weights))
content[len(content) // 2] ^= 0x40
try:
    kernel = serialization.from_bytes(weights, bytes(content))["kernel"]
    seen = f"values {sorted(set(map(float, kernel)))}"
except ValueError as error:
    seen = f"a refusal: {error}"

print("expected: a refusal of the altered bytes, or values [1.0]")
print(f"seen: {seen}")
sys.exit(seen.startswith("values") and seen != "values [1.0]")
