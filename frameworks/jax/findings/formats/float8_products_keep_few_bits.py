"""By cuBLAS on a GPU a product of float8 operands in float32 drops a small term next to a large one."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
import jax
import jax.numpy as jnp

# the sum of 8 products of 256 and 256, and of 8 of 2**-6 and 1
rows = jnp.tile(jnp.array([256.0, 2.0**-6]), (16, 8)).astype(jnp.float8_e4m3fn)
columns = jnp.tile(jnp.array([[256.0], [1.0]]), (8, 16)).astype(jnp.float8_e4m3fn)
product = jax.jit(lambda a, b: jnp.dot(a, b, precision="highest", preferred_element_type=jnp.float32))
seen = float(product(rows, columns)[0, 0])

print(f"expected: {8 * (2.0**16 + 2.0**-6)}")
print(f"seen: {seen}")
sys.exit(0 if seen == 8 * (2.0**16 + 2.0**-6) else 1)
