"""jmp's loss scales divide the magnitudes that a float8 layer is to remember."""

import sys

import jax
import jax.numpy as jnp
import jmp
from flax import linen as nn
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT

layer = nn.Dense(16, dot_general_cls=nn.Fp8DirectDotGeneralOp)
inputs = jnp.full((16, 16), 3.0)
scale = jmp.StaticLossScale(jnp.float32(1024.0))
grads = jax.grad(lambda params: scale.scale(layer.apply(params, inputs).mean()))(layer.init(jax.random.key(0), inputs))
grads = scale.unscale(grads)
seen = float(grads[OVERWRITE_WITH_GRADIENT]["Fp8DirectDotGeneralOp_0"]["input_amax_history"][0])

print("expected: 3.0, the largest magnitude of the inputs")
print(f"seen: {seen}")
sys.exit(seen != 3.0)
