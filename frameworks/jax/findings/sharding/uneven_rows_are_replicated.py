"""A constraint inside jax.jit to shard 35 rows over two devices is dropped, and nothing says so: both get all rows."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

mesh = jax.make_mesh((2,), ("shard",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("shard"))
array = jax.jit(lambda: jax.lax.with_sharding_constraint(jnp.ones((35, 33)), rows))()
seen = [shard.data.shape for shard in array.addressable_shards]

print("expected: 18 and 17 rows, or an error")
print(f"seen: {seen}")
sys.exit(0 if sum(shape[0] for shape in seen) == 35 else 1)
