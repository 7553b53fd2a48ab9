"""Attempts with JAX, Flax, Optax and JMP, without this adapter's guards.

For a refused capability, the attempt tries every way that a user has.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import optax
from flax import linen as nn
from flax.training.dynamic_scale import DynamicScale

from frameworks.contract import Attempt, Capability
from frameworks.jax.core.settings import has_peak

TAKES_EACH_IN = (
    "optax.MultiSteps takes in each micro-batch, and makes the window's update with the last, so that nothing can come "
    "between the window's gradients and their update"
)


def weight_of(value: float = 1.0) -> jax.Array:
    """Two weights."""
    return jnp.full((2,), value)


def _attempt(scale: Any, weight: jax.Array, value: float) -> tuple[Any, jax.Array]:
    """Makes one scaled update from a constant gradient."""
    gradient = scale.unscale(jax.grad(lambda w: scale.scale((w * value).sum()))(weight))
    finite = jmp.all_finite(gradient)
    return scale.adjust(finite), jmp.select_tree(finite, weight - 0.5 * gradient, weight)


def _dynamic_scaling() -> bool:
    scale, weight = _attempt(jmp.DynamicLossScale(jnp.float32(1024.0), period=1), weight_of(), float("inf"))
    skipped = float(scale.loss_scale) == 512.0 and bool((weight == 1.0).all())
    scale, weight = _attempt(scale, weight, 1.0)
    return skipped and float(scale.loss_scale) == 1024.0 and bool((weight == 0.5).all())


def _missing_gradients() -> bool:
    """Returns whether an unused parameter has no gradient, or Optax accepts None as one."""
    weights = {"a": weight_of(), "b": weight_of()}
    gradients = jax.grad(lambda leaves: leaves["a"].sum())(weights)
    return gradients.get("b") is None or any(_takes_none(make) for make in (optax.sgd, optax.adam, optax.adamw))


def _takes_none(make: Callable[[float], optax.GradientTransformation]) -> bool:
    weights, optimizer = {"a": weight_of(), "b": weight_of()}, make(0.5)
    try:
        updates, _ = optimizer.update({"a": weight_of(), "b": None}, optimizer.init(weights), weights)
        optax.apply_updates(weights, updates)
    except (TypeError, ValueError):
        return False
    return True


def _second_unscale() -> bool:
    """Returns whether a second unscale of the same gradients raises or leaves them unchanged."""
    scale = jmp.DynamicLossScale(jnp.float32(1024.0))
    once = scale.unscale(jnp.full((2,), 1024.0))
    try:
        twice = scale.unscale(once)
    except (RuntimeError, ValueError):
        return True
    return bool((twice == once).all())


def flax_moves_once_in_two_gradients() -> bool:
    """Returns whether Flax's scale moves once for two gradients of one update."""
    scale = DynamicScale()
    for _ in range(2):
        scale = scale.value_and_grad(lambda w: (w * 2.0).sum())(jnp.ones(2)).dynamic_scale
    return int(scale.fin_steps) == 1


def flax_unscales_manually() -> bool:
    """Returns whether Flax's scale has a call that unscales, like JMP's."""
    scale = DynamicScale(scale=jnp.float32(1024.0))
    gradient = jax.grad(lambda w: (w * scale.scale).sum())(jnp.ones(2))
    return bool((scale.unscale(gradient) == 1.0).all())


def window_waits_for_the_caller() -> bool:
    """Returns whether the last micro-batch of a window leaves the update to the caller."""
    window = optax.MultiSteps(optax.sgd(0.5), every_k_schedule=2)
    updates, state = weight_of(), window.init(weight_of())
    for _ in range(2):
        updates, state = window.update(weight_of(), state, weight_of())
    return bool((updates == 0.0).all())


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


def _inside(precision: str, work: Callable[[], Any]) -> Any:
    """The result of `work` in a precision scope; None if the platform has no matmul of this precision."""
    try:
        with jax.default_matmul_precision(precision):
            return work()
    except (ValueError, NotImplementedError):
        return None


def _tf32() -> bool:
    def rounds_operands() -> bool:
        return bool((jnp.full((64, 64), 1.0 + 2.0**-12) @ jnp.eye(64) == 1.0).all())

    return any(_inside(precision, rounds_operands) for precision in ("tensorfloat32", "TF32_TF32_F32"))


def _autocast_scope() -> bool:
    """Returns whether any precision scope of JAX runs a float32 matmul in a 16-bit format."""
    precisions = ("bfloat16", *(preset.name for preset in jax.lax.DotAlgorithmPreset))
    formats = {_inside(precision, lambda: (jnp.ones((8, 8)) @ jnp.eye(8)).dtype.name) for precision in precisions}
    return not formats.isdisjoint({"float16", "bfloat16"})


def _autocast_lists() -> bool:
    """Returns whether a scope takes names of operations."""
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
    Capability.DYNAMIC_SCALING: _dynamic_scaling,
    Capability.SECOND_UNSCALE: _second_unscale,
    Capability.MISSING_GRADIENTS: _missing_gradients,
}
