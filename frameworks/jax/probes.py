"""Attempts with JAX, Flax, Optax and JMP, without this adapter's guards.

For refused capabilities, every way available to a user is tried.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jmp
from flax import linen as nn

from frameworks.contract import Attempt, Capability
from frameworks.jax.core.saved_bytes import has_peak
from frameworks.jax.training.optimizer_probes import OF_OPTIMIZERS


def _computes_low(dtype: Any) -> bool:
    layer = nn.Dense(4, dtype=dtype)
    x = jnp.ones((2, 4))
    variables = layer.init(jax.random.key(0), x)
    return jnp.asarray(layer.apply(variables, x)).dtype == dtype and variables["params"]["kernel"].dtype == jnp.float32


def _low_model(dtype: Any) -> bool:
    policy = jmp.Policy(jnp.float32, dtype, jnp.float32)
    masters, formats = {"kernel": jnp.ones((4, 4))}, []

    def loss(parameters: dict[str, jax.Array]) -> jax.Array:
        formats.append(policy.cast_to_compute(parameters)["kernel"].dtype)
        return policy.cast_to_output(policy.cast_to_compute(parameters)["kernel"].sum())

    return jax.grad(loss)(masters)["kernel"].dtype == jnp.float32 and formats == [dtype]


def _all_low(dtype: Any) -> bool:
    layer = nn.Dense(4, dtype=dtype, param_dtype=dtype)
    x = jnp.ones((2, 4), dtype)
    parameters = layer.init(jax.random.key(0), x)
    gradients = jax.grad(lambda p: jnp.asarray(layer.apply(p, x)).astype(jnp.float32).sum())(parameters)
    return {leaf.dtype for leaf in jax.tree.leaves((parameters, gradients))} == {jnp.dtype(dtype)}


def _tf32() -> bool:
    return any(_rounds_operands(precision) for precision in ("tensorfloat32", "TF32_TF32_F32"))


def _rounds_operands(precision: str) -> bool:
    try:
        with jax.default_matmul_precision(precision):
            return bool((jnp.full((64, 64), 1.0 + 2.0**-12) @ jnp.eye(64) == 1.0).all())
    except (ValueError, NotImplementedError):
        return False


def _autocast_scope() -> bool:
    """A product of float32 matrices in a 16-bit format, inside any scope of precision that JAX has."""
    result = [_formats_inside(name) for name in ("bfloat16", *(preset.name for preset in jax.lax.DotAlgorithmPreset))]
    return {"float16", "bfloat16"} & set(result) != set()


def _formats_inside(precision: str) -> str:
    """Format of such a product inside a scope; empty where the platform has no products of that precision."""
    try:
        with jax.default_matmul_precision(precision):
            return (jnp.ones((8, 8)) @ jnp.eye(8)).dtype.name
    except (ValueError, NotImplementedError):
        return ""


def _autocast_lists() -> bool:
    """A scope that takes names of operations."""
    try:
        with jax.default_matmul_precision("bfloat16", operations=["matmul"]):
            return True
    except TypeError:
        return False


ATTEMPTS: dict[Capability, Attempt] = {
    Capability.O1_FLOAT16: partial(_computes_low, jnp.float16),
    Capability.O1_BFLOAT16: partial(_computes_low, jnp.bfloat16),
    Capability.O2_FLOAT16: partial(_low_model, jnp.float16),
    Capability.O2_BFLOAT16: partial(_low_model, jnp.bfloat16),
    Capability.O3_FLOAT16: partial(_all_low, jnp.float16),
    Capability.O3_BFLOAT16: partial(_all_low, jnp.bfloat16),
    Capability.AUTOCAST_SCOPE: _autocast_scope,
    Capability.AUTOCAST_LISTS: _autocast_lists,
    Capability.PEAK_BYTES: has_peak,
    Capability.TF32: _tf32,
    **OF_OPTIMIZERS,
}
