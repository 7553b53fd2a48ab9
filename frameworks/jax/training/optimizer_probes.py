"""Attempts with Optax and the loss scales of JMP and Flax, without this adapter's guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import optax
from flax.training.dynamic_scale import DynamicScale

from frameworks.contract import Attempt, Capability
from frameworks.jax.training.optimizers import global_norm, partition

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


def _static_scaling() -> bool:
    scale, weight = _attempt(jmp.StaticLossScale(jnp.float32(128.0)), weight_of(), 1.0)
    return float(scale.loss_scale) == 128.0 and bool((weight == 0.5).all())


def _scaling_factors() -> bool:
    """Growth by 4 and backoff to one half, by Flax's scale."""
    scale = DynamicScale(growth_factor=4.0, backoff_factor=0.5, growth_interval=1, scale=jnp.float32(16.0))
    scales = []
    for slope in (1.0, 1.0, float("inf")):
        scale = scale.value_and_grad(lambda w, slope=slope: (w * slope).sum())(weight_of()).dynamic_scale
        scales.append(float(scale.scale))
    return {later / earlier for earlier, later in zip([16.0, *scales], scales, strict=False)} == {1.0, 4.0, 0.5}


def _scaling_disabled() -> bool:
    scale, weight = _attempt(jmp.NoOpLossScale(), weight_of(), 1.0)
    return scale.loss_scale == 1 and bool((weight == 0.5).all())


def _explicit_unscale() -> bool:
    scale: Any = jmp.DynamicLossScale(jnp.float32(1024.0))
    return bool((scale.unscale(weight_of(1024.0)) == 1.0).all())


def _two_optimizers() -> bool:
    scale: Any = jmp.DynamicLossScale(jnp.float32(1024.0))
    weights, optimizers = [weight_of(), weight_of()], [optax.sgd(0.5), optax.sgd(0.25)]
    gradients = scale.unscale(jax.grad(lambda ws: scale.scale(ws[0].sum() + ws[1].sum()))(weights))
    moved = []
    for weight, gradient, optimizer in zip(weights, gradients, optimizers, strict=True):
        updates, _ = optimizer.update(gradient, optimizer.init(weight), weight)
        moved.append(float(optax.apply_updates(weight, updates)[0]))
    return moved == [0.5, 0.75]


def _two_losses() -> bool:
    scale: Any = jmp.DynamicLossScale(jnp.float32(1024.0))
    _, pull = jax.vjp(lambda w: scale.scale(((w * 1.0).sum(), (w * 2.0).sum())), weight_of())
    first, second = (jnp.float32(1.0), jnp.float32(0.0)), (jnp.float32(0.0), jnp.float32(1.0))
    gradients = [scale.unscale(pull(cotangent)[0]) for cotangent in (first, second)]
    return [float(gradient[0]) for gradient in gradients] == [1.0, 2.0]


def _accumulation() -> bool:
    window, weight = optax.MultiSteps(optax.sgd(0.5), every_k_schedule=2), weight_of()
    state, weights = window.init(weight), []
    for value in (1.0, 3.0):
        updates, state = window.update(weight_of(value), state, weight)
        weight = optax.apply_updates(weight, updates)
        weights.append(float(weight[0]))
    return weights == [1.0, 0.0]


def _partial_window() -> bool:
    """Windows of two and of one micro-batch, as `every_k_schedule` says before they begin."""
    window = optax.MultiSteps(optax.sgd(0.5), every_k_schedule=lambda step: jnp.array([2, 1])[step])
    weight = weight_of()
    state, weights = window.init(weight), []
    for _ in range(3):
        updates, state = window.update(weight_of(), state, weight)
        weight = optax.apply_updates(weight, updates)
        weights.append(float(weight[0]))
    return weights == [1.0, 0.5, 0.0]


def _clip() -> bool:
    clip = optax.clip_by_global_norm(1.0)
    gradients, _ = clip.update(weight_of(8.0), clip.init(weight_of()))
    return float(global_norm(gradients)) < 1.001


def _rates(optimizer: optax.GradientTransformation, weight: Any, gradient: Any, count: int) -> list[Any]:
    state, result = optimizer.init(weight), []
    for _ in range(count):
        updates, state = optimizer.update(gradient, state, weight)
        result.append(jax.tree.map(lambda u: -float(u[0]), updates))
    return result


def _schedule() -> bool:
    steps = optax.join_schedules([optax.constant_schedule(0.5), optax.constant_schedule(0.25)], [1])
    return _rates(optax.sgd(steps), weight_of(), weight_of(), 2) == [0.5, 0.25]


def _groups() -> bool:
    weights = {"a": weight_of(), "b": weight_of()}
    groups = partition({"0": optax.sgd(0.5), "1": optax.sgd(0.25)}, {"a": "0", "b": "1"})
    return _rates(groups, weights, weights, 1) == [{"a": 0.5, "b": 0.25}]


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


def _average() -> bool:
    return bool((optax.incremental_update(weight_of(0.0), weight_of(1.0), 0.25) == 0.75).all())


def _feed() -> bool:
    weight, optimizer, given = weight_of(), optax.sgd(0.5), jnp.array([0.5, 2.0])
    gradient = jax.grad(lambda w: (w * given).sum())(weight)
    updates, _ = optimizer.update(gradient, optimizer.init(weight), weight)
    return bool((optax.apply_updates(weight, updates) == jnp.array([0.75, 0.0])).all())


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


def flax_unscales_by_hand() -> bool:
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
    Capability.STATIC_SCALING: _static_scaling,
    Capability.SCALING_FACTORS: _scaling_factors,
    Capability.SCALING_DISABLED: _scaling_disabled,
    Capability.EXPLICIT_UNSCALE: _explicit_unscale,
    Capability.SECOND_UNSCALE: _second_unscale,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.ACCUMULATION: _accumulation,
    Capability.PARTIAL_WINDOW: _partial_window,
    Capability.CLIP: _clip,
    Capability.SCHEDULE: _schedule,
    Capability.GROUPS: _groups,
    Capability.MISSING_GRADIENTS: _missing_gradients,
    Capability.AVERAGE: _average,
    Capability.FEED: _feed,
}
"""Attempts for each capability of optimizers and of loss scales."""
