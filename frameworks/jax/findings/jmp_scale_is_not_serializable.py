"""flax.serialization cannot save a state that holds a jmp.DynamicLossScale."""

import sys

import jax.numpy as jnp
import jmp
from flax import serialization

state = {"loss_scale": jmp.DynamicLossScale(jnp.float32(2.0**15))}
try:
    restored = serialization.from_bytes(state, serialization.to_bytes(state))
    seen = f"a scale of {float(restored['loss_scale'].loss_scale)}"
except TypeError as error:
    seen = f"TypeError: {error}"

print("expected: a scale of 32768.0")
print(f"seen: {seen}")
sys.exit(seen != "a scale of 32768.0")
