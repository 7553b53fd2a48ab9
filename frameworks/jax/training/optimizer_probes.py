"""Attempts with Optax and the loss scales of JMP and Flax, without this adapter's guards."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import optax
from flax.training.dynamic_scale import DynamicScale

from frameworks.contract import Attempt, Capability

TAKES_EACH_IN = (
    "optax.MultiSteps takes in each micro-batch, and makes the window's update with the last, so that nothing can come "
    "between the window's gradients and their update"
)


def weight_of(value: float = 1.0) -> jax.Array:
    """Two weights."""
    return jnp.full((2,), value)


def _attempt(scale: Any, weight: jax.Array, value: float) -> tuple[Any, jax.Array]:
    """One scaled update from a gradient that is the same everywhere."""
    gradient = scale.unscale(jax.grad(lambda w: scale.scale((w * value).sum()))(weight))
    finite = jmp.all_finite(gradient)
    return scale.adjust(finite), jmp.select_tree(finite, weight - 0.5 * gradient, weight)


def _dynamic_scaling() -> bool:
    scale, weight = _attempt(jmp.DynamicLossScale(jnp.float32(1024.0), period=1), weight_of(), float("inf"))
    skipped = float(scale.loss_scale) == 512.0 and bool((weight == 1.0).all())
    scale, weight = _attempt(scale, weight, 1.0)
    return skipped and float(scale.loss_scale) == 1024.0 and bool((weight == 0.5).all())


def _missing_gradients() -> bool:
    """Whether a parameter that the loss does not reach has no gradient, or Optax takes None for one."""
    weights = {"a": weight_of(), "b": weight_of()}
    gradients = jax.grad(lambda given: given["a"].sum())(weights)
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
    """A second unscale of the same gradients raises or leaves them as they are."""
    scale = jmp.DynamicLossScale(jnp.float32(1024.0))
    once = scale.unscale(jnp.full((2,), 1024.0))
    try:
        twice = scale.unscale(once)
    except (RuntimeError, ValueError):
        return True
    return bool((twice == once).all())


def flax_moves_once_in_two_gradients() -> bool:
    """Two gradients taken for one update are counted as one."""
    scale = DynamicScale()
    for _ in range(2):
        scale = scale.value_and_grad(lambda w: (w * 2.0).sum())(jnp.ones(2)).dynamic_scale
    return int(scale.fin_steps) == 1


def flax_unscales_manually() -> bool:
    """Flax's scale has JMP's call."""
    scale = DynamicScale(scale=jnp.float32(1024.0))
    gradient = jax.grad(lambda w: (w * scale.scale).sum())(jnp.ones(2))
    return bool((scale.unscale(gradient) == 1.0).all())


def window_waits_for_the_caller() -> bool:
    """The last micro-batch of a window leaves the window's update to the caller."""
    window = optax.MultiSteps(optax.sgd(0.5), every_k_schedule=2)
    updates, state = weight_of(), window.init(weight_of())
    for _ in range(2):
        updates, state = window.update(weight_of(), state, weight_of())
    return bool((updates == 0.0).all())


OF_OPTIMIZERS: dict[Capability, Attempt] = {
    Capability.DYNAMIC_SCALING: _dynamic_scaling,
    Capability.SECOND_UNSCALE: _second_unscale,
    Capability.MISSING_GRADIENTS: _missing_gradients,
}
"""Attempts for each capability of optimizers and of loss scales."""
