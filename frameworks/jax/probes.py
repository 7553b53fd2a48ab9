"""Attempts with JAX, Flax, Optax and JMP, without this adapter's guards.

For refused capabilities, every way available to a user is tried.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import orbax.checkpoint as ocp
from flax import linen as nn

from frameworks.contract import Attempt, Capability
from frameworks.jax.core.arrays import wide_formats
from frameworks.jax.training.optimizer_probes import OF_OPTIMIZERS, weight_of


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


def _float64_heads() -> bool:
    with wide_formats(True):
        head = nn.Dense(1, dtype=jnp.float64, param_dtype=jnp.float64)
        output, _ = head.init_with_output(jax.random.key(0), jnp.ones((2, 4), jnp.bfloat16))
    return output.dtype == jnp.float64


def _operations() -> bool:
    return jnp.matmul(jnp.ones((2, 2), jnp.float16), jnp.ones((2, 2), jnp.float16)).dtype == jnp.float16


def _residuals(function: Callable[[jax.Array], jax.Array]) -> int:
    _, pull = jax.vjp(function, jnp.ones((64,)))
    return sum(array.nbytes for array in jax.tree.leaves(pull))


def _chain(x: jax.Array) -> jax.Array:
    for _ in range(4):
        x = jnp.sin(x)
    return x


def _recompute() -> bool:
    lean = jax.checkpoint(_chain)
    same = bool((jax.vjp(lean, jnp.ones((64,)))[1](jnp.ones((64,)))[0] != 0.0).all())
    return same and _residuals(lean) < _residuals(_chain)


def _recompute_nested() -> bool:
    inner = jax.checkpoint(_chain)
    return _residuals(jax.checkpoint(lambda x: inner(inner(x)))) < _residuals(lambda x: inner(inner(x)))


def _segment_calls() -> bool:
    """Runs of a function and of its recomputation, counted by a callback."""
    begun: list[int] = []

    def count_call(_: Any) -> None:
        begun.append(1)

    def segment(x: jax.Array) -> jax.Array:
        jax.debug.callback(count_call, x[0])
        return jnp.sin(x).sum()

    jax.block_until_ready(jax.grad(jax.checkpoint(segment))(weight_of()))
    jax.effects_barrier()
    return len(begun) == 2


def _checkpoint() -> bool:
    weight = weight_of(3.0)
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/run", {"weight": weight})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(f"{folder}/run", {"weight": weight_of(0.0)})
    return bool((restored["weight"] == weight).all())


def _saved_bytes() -> bool:
    return _residuals(jnp.sin) == 256


def _peak_bytes() -> bool:
    (device,) = weight_of().devices()
    return device.memory_stats() is not None


def _trace() -> bool:
    """What a module sows, and the gradient for what it perturbs."""

    class Doubled(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = self.perturb("inside", 2.0 * x)
            self.sow("intermediates", "inside", x)
            return jnp.square(x).sum()

    def loss(perturbations: Any) -> tuple[jax.Array, Any]:
        return Doubled().apply({"perturbations": perturbations}, weight_of(), mutable=["intermediates"])

    gradient, sown = jax.grad(loss, has_aux=True)({"inside": weight_of(0.0)})
    inside = sown["intermediates"]["inside"][0]
    return bool((inside == 2.0).all() and (gradient["inside"] == 4.0).all())


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
    Capability.FLOAT64_HEADS: _float64_heads,
    Capability.AUTOCAST_SCOPE: _autocast_scope,
    Capability.AUTOCAST_LISTS: _autocast_lists,
    Capability.OPERATIONS: _operations,
    Capability.RECOMPUTE: _recompute,
    Capability.RECOMPUTE_NESTED: _recompute_nested,
    Capability.RECOMPUTE_CASES: _recompute,
    Capability.SEGMENT_CALLS: _segment_calls,
    Capability.CHECKPOINT: _checkpoint,
    Capability.SAVED_BYTES: _saved_bytes,
    Capability.PEAK_BYTES: _peak_bytes,
    Capability.TF32: _tf32,
    Capability.TRACE: _trace,
    **OF_OPTIMIZERS,
}
