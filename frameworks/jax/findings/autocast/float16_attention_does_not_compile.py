"""jax.nn.dot_product_attention of float16 runs on a CPU, and raises inside jax.jit."""

import sys

import jax
import jax.numpy as jnp

x = jnp.ones((1, 2, 1, 4), jnp.float16)
results = []
for attention in (jax.nn.dot_product_attention, jax.jit(jax.nn.dot_product_attention)):
    try:
        results.append(f"{float(attention(x, x, x).sum()):g}")
    except ValueError as error:
        results.append(f"ValueError: {error}")
expected, seen = (f"attention to ones adds up to {result} inside jax.jit" for result in results)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
