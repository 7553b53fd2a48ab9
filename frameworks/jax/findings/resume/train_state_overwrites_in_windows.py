"""Inside a window of optax.MultiSteps flax's TrainState overwrites float8 scales with every micro-batch."""

import sys

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from flax.training.train_state import TrainState

layer = nn.Dense(16, dot_general_cls=nn.Fp8DirectDotGeneralOp)
small, large = jnp.full((16, 16), 1.0), jnp.full((16, 16), 8.0)
window = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=2).gradient_transformation()
state = TrainState.create(apply_fn=layer.apply, params=layer.init(jax.random.key(0), small), tx=window)
for inputs in (large, small):
    grads = jax.grad(lambda params, x=inputs: layer.apply(params, x).mean())(state.params)
    state = state.apply_gradients(grads=grads)
history = state.params[OVERWRITE_WITH_GRADIENT]["Fp8DirectDotGeneralOp_0"]["input_amax_history"]
seen = int(jnp.count_nonzero(history))

print("expected: 1 magnitude, the largest of the window, which is one step of the optimizer")
print(f"seen: {seen}")
sys.exit(seen != 1)
