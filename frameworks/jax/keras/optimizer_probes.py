"""Attempts with Keras' optimizers and loss scaling on JAX, without this adapter's guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from frameworks.contract import Attempt, Capability

SGD, Scaler = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer
Values = list[jax.Array]


def _weights(count: int = 2) -> list[keras.Variable]:
    return [keras.Variable(np.ones((), np.float32), name=f"weight_{i}") for i in range(count)]


def _built(optimizer: keras.optimizers.Optimizer, weights: Sequence[keras.Variable]) -> tuple[Values, Values]:
    """The values of the weights and of the optimizer's variables."""
    optimizer.build(weights)
    return [weight.value for weight in weights], [variable.value for variable in optimizer.variables]


def _applied(
    optimizer: keras.optimizers.Optimizer, *gradients: Sequence[float], weights: list[keras.Variable] | None = None
) -> tuple[list[list[float]], Values]:
    """Two weights, at 1 before, after each `stateless_apply` of a pair of gradients, and the optimizer's variables."""
    values, state = _built(optimizer, weights or _weights())
    step = jax.jit(optimizer.stateless_apply)
    seen = []
    for pair in gradients:
        values, state = step(state, [jnp.float32(g) for g in pair], values)
        seen.append([float(value) for value in values])
    return seen, state


def _scale(scaler: keras.optimizers.LossScaleOptimizer, state: Values) -> float:
    """The loss scale among the values of its variables."""
    (place,) = (place for place, variable in enumerate(scaler.variables) if variable is scaler.dynamic_scale)
    return float(state[place])


def _dynamic() -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=8.0)
    after, state = _applied(scaler, [float("inf"), 0.0])
    return after == [[1.0, 1.0]] and _scale(scaler, state) == 4.0


def _static() -> bool:
    optimizer = SGD(0.5, loss_scale_factor=8.0)
    return float(optimizer.scale_loss(jnp.float32(1.0))) == 8.0 and _applied(optimizer, [8.0, 0.0])[0] == [[0.5, 1.0]]


def _factors() -> bool:
    """A scale that grows by 4, by any argument that may have this meaning."""
    for name in ("growth_factor", "dynamic_growth_factor", "multiplier"):
        try:
            scaler = Scaler(SGD(0.5), initial_scale=8.0, dynamic_growth_steps=1, **{name: 4.0})
        except (TypeError, ValueError):
            continue
        return _scale(scaler, _applied(scaler, [0.0, 0.0])[1]) == 32.0
    return False


def _disabled() -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=8.0, dynamic=False)
    return _applied(scaler, [float("inf"), 0.0])[0] != [[1.0, 1.0]]


def _by_hand() -> bool:
    """A call to unscale: Keras 2 had `get_unscaled_gradients`, other frameworks have `unscale`."""
    return any("unscale" in name for name in dir(Scaler) if not name.startswith("_"))


def _pair(**common: Any) -> tuple[keras.optimizers.Optimizer, list[keras.Variable]]:
    weights = _weights()
    chosen = keras.optimizers.OptimizerMap(SGD(0.5, **common), {weights[1].path: SGD(0.25, **common)})
    return keras.optimizers.MultiOptimizer(chosen), weights


def _groups() -> bool:
    optimizer, weights = _pair()
    return _applied(optimizer, [1.0, 1.0], weights=weights)[0] == [[0.5, 0.75]]


def _two_optimizers() -> bool:
    optimizer, weights = _pair()
    scaler = Scaler(optimizer, initial_scale=2.0)
    after, state = _applied(scaler, [float("inf"), 1.0], [1.0, 1.0], weights=weights)
    return after == [[1.0, 1.0], [0.5, 0.75]] and _scale(scaler, state) == 1.0


def _two_losses() -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=4.0)
    values, state = _built(scaler, _weights(1))

    def scaled(factor: float, value: jax.Array) -> jax.Array:
        with keras.StatelessScope(state_mapping=list(zip(scaler.variables, state, strict=True))):
            return scaler.scale_loss(factor * value)

    gradients = [jax.grad(scaled, argnums=1)(factor, values[0]) for factor in (0.25, 0.5)]
    ((after,), _) = scaler.stateless_apply(state, [sum(gradients)], values)
    return float(after) == 0.625


def _accumulates() -> bool:
    optimizer = SGD(0.5, gradient_accumulation_steps=2)
    return _applied(optimizer, [1.0, 0.0], [0.0, 1.0])[0] == [[1.0, 1.0], [0.75, 0.75]]


def _flushes() -> bool:
    """Two of four micro-batches, then each call that may end the window: their mean must be applied."""
    for end in range(1, 5):
        weights = _weights()
        optimizer = SGD(0.5, gradient_accumulation_steps=4)
        optimizer.build(weights)
        for _ in range(2):
            optimizer.apply([jnp.float32(1.0)] * 2, weights)
        if end == 1:
            optimizer.finalize_variable_values(weights)
        else:
            optimizer.gradient_accumulation_steps = end
            optimizer.apply([jnp.float32(0.0)] * 2, weights)
        if [float(weight.value) for weight in weights] == [0.5, 0.5]:
            return True
    return False


def _clips() -> bool:
    return _applied(SGD(1.0, global_clipnorm=0.5), [4.0, 0.0])[0] == [[0.5, 1.0]]


def _schedules() -> bool:
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
    return _applied(SGD(rate), [1.0, 0.0], [1.0, 0.0])[0] == [[0.5, 1.0], [0.25, 1.0]]


def _misses() -> bool:
    """Whether JAX gives nothing for a weight that the loss does not reach."""
    values, _ = _built(SGD(0.5), _weights())
    gradients: list[Any] = jax.grad(lambda own: 2.0 * own[0])(values)
    return gradients[1] is None


def _averages() -> bool:
    optimizer, weights = SGD(0.5, use_ema=True, ema_momentum=0.5), _weights()
    optimizer.build(weights)
    for _ in range(2):
        optimizer.apply([jnp.float32(1.0)] * 2, weights)
    optimizer.finalize_variable_values(weights)
    return float(weights[0].value) == 0.25


OF_OPTIMIZERS: dict[Capability, Attempt] = {
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.SCALING_FACTORS: _factors,
    Capability.SCALING_DISABLED: _disabled,
    Capability.EXPLICIT_UNSCALE: _by_hand,
    Capability.SECOND_UNSCALE: _by_hand,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.ACCUMULATION: _accumulates,
    Capability.PARTIAL_WINDOW: _flushes,
    Capability.GROUPS: _groups,
    Capability.CLIP: _clips,
    Capability.SCHEDULE: _schedules,
    Capability.MISSING_GRADIENTS: _misses,
    Capability.AVERAGE: _averages,
    Capability.FEED: lambda: _applied(SGD(0.5), [1.0, 0.0])[0] == [[0.5, 1.0]],
}
"""Attempts for each capability of optimizers."""
