"""A compiled program leaves out a rounding to bfloat16 that the same operations make one by one."""

import sys

import jax
import jax.numpy as jnp

x, w = (jax.random.normal(jax.random.key(seed), (64, 8, 8, 4), jnp.bfloat16) for seed in (0, 1))
w = w[:4, :3, :3]  # 4 kernels of 3 times 3 for the 4 channels of x


def product(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution in bfloat16 whose result is wanted in float32."""
    low = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "OHWI", "NHWC"))
    return low.astype(jnp.float32)


compiled = jax.jit(product)(x, w)
unrounded = int((compiled != compiled.astype(jnp.bfloat16)).sum())

print("expected: 0 values with more digits than bfloat16 has")
print(f"seen: {unrounded} of {compiled.size} values")
sys.exit(unrounded > 0)
