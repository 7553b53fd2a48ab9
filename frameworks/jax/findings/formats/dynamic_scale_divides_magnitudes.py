"""flax's DynamicScale divides the magnitudes that a float8 layer is to remember by the loss scale."""

import sys

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from flax.training.dynamic_scale import DynamicScale

layer = nn.Dense(16, dot_general_cls=nn.Fp8DirectDotGeneralOp)
inputs = jnp.full((16, 16), 3.0)
variables = layer.init(jax.random.key(0), inputs)
scale = DynamicScale(scale=jnp.float32(1024.0))
found = scale.value_and_grad(lambda params: layer.apply(params, inputs).mean())(variables)
seen = float(found.grad[OVERWRITE_WITH_GRADIENT]["Fp8DirectDotGeneralOp_0"]["input_amax_history"][0])

print("expected: 3.0, the largest magnitude of the inputs, for TrainState overwrites the history with this")
print(f"seen: {seen}")
sys.exit(seen != 3.0)
