"""Gradients of x ** 0 at x = 0 and of xlogy(0, y) at y = 0 are NaN, where the functions are constant."""

import sys

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

seen = {"power": float(jax.grad(jnp.power)(0.0, 0.0)), "xlogy": float(jax.grad(xlogy, argnums=1)(0.0, 0.0))}
print("expected: 0.0 twice, slopes of constant functions")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {0.0} else 1)
