"""A float64 a little below the middle of two codes of float8_e4m3fn is cast to the upper one, on a GPU."""

import sys

import jax

jax.config.update("jax_enable_x64", True)
middle = 1.5 * 2.0**-9
value = jax.numpy.asarray(middle * (1 - 2.0**-52), jax.numpy.float64)
seen = float(jax.jit(lambda x: x.astype(jax.numpy.float8_e4m3fn))(value).astype(jax.numpy.float32))

print(f"expected: {2.0**-9}")
print(f"seen: {seen}")
sys.exit(0 if seen == 2.0**-9 else 1)
