"""Qwix's apply_lora_to_model with a pattern that no layer has gives the model without adapters, and says nothing."""

import sys
import warnings

import jax.numpy as jnp
import qwix
from flax import nnx

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    provider = qwix.LoraProvider(module_path="no-layer", rank=1, alpha=1.0)
    model = qwix.apply_lora_to_model(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), provider, jnp.ones((1, 2)), rngs=nnx.Rngs(0))
told = any("no-layer" in str(warning.message) for warning in caught)
adapters = len(nnx.to_flat_state(nnx.state(model, nnx.LoRAParam)))

print("expected: an exception, or a warning that names the pattern")
print(f"seen: {adapters} adapters, a warning: {told}")
sys.exit(int(adapters == 0 and not told))
