"""Attempts with Keras' optimizers and loss scaling, without this adapter's guards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from frameworks.contract import Capability
from frameworks.tf.steps import compiled

SGD, Scaler = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer


def _weights(count: int = 2) -> list[keras.Variable]:
    return [keras.Variable(np.ones((), np.float32), name=f"weight_{i}") for i in range(count)]


def _apply(
    optimizer: keras.optimizers.Optimizer,
    mode: str,
    *gradients: Sequence[float | None],
    weights: list[keras.Variable] | None = None,
) -> list[list[float]]:
    """Two weights, at 1 before, after each `optimizer.apply` of a pair of gradients."""
    given = _weights() if weights is None else weights
    optimizer.build(given)
    seen = []
    for pair in gradients:

        def step(pair: Sequence[float | None] = pair) -> None:
            optimizer.apply([None if g is None else tf.constant(g, tf.float32) for g in pair], given)

        compiled(step, mode)()
        seen.append([float(weight) for weight in given])
    return seen


def _dynamic(mode: str) -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=8.0)
    return _apply(scaler, mode, [float("inf"), 0.0]) == [[1.0, 1.0]] and float(scaler.dynamic_scale) == 4.0


def _static(mode: str) -> bool:
    optimizer = SGD(0.5, loss_scale_factor=8.0)
    scaled = float(optimizer.scale_loss(tf.constant(1.0)))
    return scaled == 8.0 and _apply(optimizer, mode, [8.0, 0.0]) == [[0.5, 1.0]]


def _factors(mode: str) -> bool:
    """A scale that grows by 4, by any argument that may have this meaning."""
    for name in ("growth_factor", "dynamic_growth_factor", "multiplier"):
        try:
            scaler = Scaler(SGD(0.5), initial_scale=8.0, dynamic_growth_steps=1, **{name: 4.0})
        except (TypeError, ValueError):
            continue
        _apply(scaler, mode, [0.0, 0.0])
        return float(scaler.dynamic_scale) == 32.0
    return False


def _disabled(mode: str) -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=8.0, dynamic=False)
    return _apply(scaler, mode, [float("inf"), 0.0]) != [[1.0, 1.0]]


def _by_hand(_: str) -> bool:
    """A call to unscale: Keras 2 had `get_unscaled_gradients`, other frameworks have `unscale`."""
    return any("unscale" in name for name in dir(Scaler) if not name.startswith("_"))


def _pair(**common: Any) -> tuple[keras.optimizers.Optimizer, list[keras.Variable]]:
    weights = _weights()
    chosen = keras.optimizers.OptimizerMap(SGD(0.5, **common), {weights[1].path: SGD(0.25, **common)})
    return keras.optimizers.MultiOptimizer(chosen), weights


def _groups(mode: str) -> bool:
    optimizer, weights = _pair()
    return _apply(optimizer, mode, [1.0, 1.0], weights=weights) == [[0.5, 0.75]]


def _two_optimizers(mode: str) -> bool:
    optimizer, weights = _pair()
    scaler = Scaler(optimizer, initial_scale=2.0)
    after = _apply(scaler, mode, [float("inf"), 1.0], [1.0, 1.0], weights=weights)
    return after == [[1.0, 1.0], [0.5, 0.75]] and float(scaler.dynamic_scale) == 1.0


def _two_losses(mode: str) -> bool:
    scaler, (weight, _) = Scaler(SGD(0.5), initial_scale=4.0), _weights()
    scaler.build([weight])

    def step() -> None:
        with tf.GradientTape(persistent=True) as tape:
            losses = [scaler.scale_loss(factor * weight.value) for factor in (0.25, 0.5)]
        scaler.apply([tf.add_n([tape.gradient(loss, weight.value) for loss in losses])], [weight])

    compiled(step, mode)()
    return float(weight) == 0.625


def _accumulates(mode: str) -> bool:
    optimizer = SGD(0.5, gradient_accumulation_steps=2)
    return _apply(optimizer, mode, [1.0, 0.0], [0.0, 1.0]) == [[1.0, 1.0], [0.75, 0.75]]


def _flushes(mode: str) -> bool:
    """Two of four micro-batches, then each call that may end the window: their mean must be applied."""
    for end in range(1, 5):
        weights = _weights()
        optimizer = SGD(0.5, gradient_accumulation_steps=4)
        _apply(optimizer, mode, [1.0, 1.0], [1.0, 1.0], weights=weights)
        if end == 1:
            optimizer.finalize_variable_values(weights)
        else:
            optimizer.gradient_accumulation_steps = end
            _apply_once(optimizer, mode, weights)
        if [float(weight) for weight in weights] == [0.5, 0.5]:
            return True
    return False


def _apply_once(optimizer: keras.optimizers.Optimizer, mode: str, weights: list[keras.Variable]) -> None:
    compiled(lambda: optimizer.apply([tf.constant(0.0)] * len(weights), weights), mode)()


def _clips(mode: str) -> bool:
    return _apply(SGD(1.0, global_clipnorm=0.5), mode, [4.0, 0.0]) == [[0.5, 1.0]]


def _schedules(mode: str) -> bool:
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
    return _apply(SGD(rate), mode, [1.0, 0.0], [1.0, 0.0]) == [[0.5, 1.0], [0.25, 1.0]]


def _misses(mode: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras says which variables have no gradient
        return _apply(SGD(0.5), mode, [1.0, None]) == [[0.5, 1.0]]


def _averages(mode: str) -> bool:
    optimizer, weights = SGD(0.5, use_ema=True, ema_momentum=0.5), _weights()
    _apply(optimizer, mode, [1.0, 1.0], [1.0, 1.0], weights=weights)
    optimizer.finalize_variable_values(weights)
    return float(weights[0]) == 0.25


OF_OPTIMIZERS: dict[Capability, Callable[[str], bool]] = {
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
    Capability.FEED: lambda mode: _apply(SGD(0.5), mode, [1.0, 0.0]) == [[0.5, 1.0]],
}
"""Attempts for each capability of optimizers, in a mode."""
