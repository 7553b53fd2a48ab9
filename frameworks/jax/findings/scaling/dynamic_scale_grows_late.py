"""flax's DynamicScale grows after one finite step more than its growth_interval says."""

import sys

import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale

scale = DynamicScale(growth_interval=3, scale=jnp.float32(1024.0))
seen = 0
while float(scale.scale) == 1024.0:
    scale = scale.value_and_grad(lambda w: (w * 2.0).sum())(jnp.ones(2)).dynamic_scale
    seen += 1

print("expected: the scale grows after 3 finite steps")
print(f"seen: it grows after {seen}")
sys.exit(seen != 3)
