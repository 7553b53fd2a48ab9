"""optax.global_norm squares float16 gradients in float16, so that a norm that it holds comes out infinite, or zero."""

import sys

import jax.numpy as jnp
import numpy as np
import optax

gradients = [np.full(4, 300.0), np.full(4, 2.0**-14)]
expected = [float(np.sqrt(np.sum(gradient**2))) for gradient in gradients]
seen = [float(optax.global_norm([jnp.asarray(gradient, jnp.float16)])) for gradient in gradients]
print(f"expected: norms of a large and a small gradient of {expected}")
print(f"seen: {seen}")
sys.exit(not np.allclose(seen, expected, rtol=0.01))
