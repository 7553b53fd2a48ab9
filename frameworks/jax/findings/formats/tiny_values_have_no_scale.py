"""Flax' float8 product makes NaN of tiny finite values, because their delayed scale is zero."""

import sys

import jax
import jax.numpy as jnp
from flax.linen import fp8_ops

operation = fp8_ops.Fp8DirectDotGeneralOp(amax_history_length=1)
dimensions = (((1,), (0,)), ((), ()))
inputs, kernel = jnp.array([[1e-37, 0.0]]), jnp.ones((2, 2))
state = operation.init({}, inputs, kernel, dimensions)
output, backward = jax.vjp(lambda state: operation.apply(state, inputs, kernel, dimensions), state)
(state,) = backward(jnp.ones_like(output))
scaled = operation.apply(state, inputs, kernel, dimensions)

print("expected: a finite product, for 1e-37 and 1 are finite, and a scale that would be too small is limited")
print(f"seen: {scaled}")
sys.exit(not bool(jnp.isfinite(scaled).all()))
