"""Attempts with Keras' optimizers and loss scaling, without an adapter's guards."""

from collections.abc import Callable
from functools import partial

import keras

from frameworks.contract import Attempt, Capability
from frameworks.keras_common.backend import KerasBackend, applied, number, scalars

SGD, Scaler = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer


def _dynamic(backend: KerasBackend) -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=8.0)
    return applied(backend, scaler, [float("inf"), 0.0]) == [[1.0, 1.0]] and number(scaler.dynamic_scale) == 4.0


def _factors(backend: KerasBackend) -> bool:
    """A scale that grows by 4, by any argument that may have this meaning."""
    for name in ("growth_factor", "dynamic_growth_factor", "multiplier"):
        try:
            scaler = Scaler(SGD(0.5), initial_scale=8.0, dynamic_growth_steps=1, **{name: 4.0})
        except (TypeError, ValueError):
            continue
        applied(backend, scaler, [0.0, 0.0])
        return number(scaler.dynamic_scale) == 32.0
    return False


def _disabled(backend: KerasBackend) -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=8.0, dynamic=False)
    return applied(backend, scaler, [float("inf"), 0.0]) != [[1.0, 1.0]]


def _manually(_: KerasBackend) -> bool:
    """A call to unscale: Keras 2 had `get_unscaled_gradients`, other frameworks have `unscale`."""
    return any("unscale" in name for name in dir(Scaler) if not name.startswith("_"))


def _pair() -> tuple[keras.optimizers.Optimizer, list[keras.Variable]]:
    weights = scalars()
    chosen = keras.optimizers.OptimizerMap(SGD(0.5), {weights[1].path: SGD(0.25)})
    return keras.optimizers.MultiOptimizer(chosen), weights


def _groups(backend: KerasBackend) -> bool:
    optimizer, weights = _pair()
    return applied(backend, optimizer, [1.0, 1.0], weights=weights) == [[0.5, 0.75]]


def _two_optimizers(backend: KerasBackend) -> bool:
    optimizer, weights = _pair()
    scaler = Scaler(optimizer, initial_scale=2.0)
    after = applied(backend, scaler, [float("inf"), 1.0], [1.0, 1.0], weights=weights)
    return after == [[1.0, 1.0], [0.5, 0.75]] and number(scaler.dynamic_scale) == 1.0


def _flushes(backend: KerasBackend) -> bool:
    """Two of four micro-batches, then each call that may end the window: their mean must be applied."""
    for end in range(1, 5):
        weights = scalars()
        optimizer = SGD(0.5, gradient_accumulation_steps=4)
        applied(backend, optimizer, [1.0, 1.0], [1.0, 1.0], weights=weights)
        if end == 1:
            optimizer.finalize_variable_values(weights)
        else:
            optimizer.gradient_accumulation_steps = end
            backend.apply(optimizer, [0.0, 0.0], weights)
        if [number(weight) for weight in weights] == [0.5, 0.5]:
            return True
    return False


_OF_OPTIMIZERS: dict[Capability, Callable[[KerasBackend], bool]] = {
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.SCALING_FACTORS: _factors,
    Capability.SCALING_DISABLED: _disabled,
    Capability.EXPLICIT_UNSCALE: _manually,
    Capability.SECOND_UNSCALE: _manually,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.PARTIAL_WINDOW: _flushes,
    Capability.GROUPS: _groups,
}


def optimizer_attempts(backend: KerasBackend) -> dict[Capability, Attempt]:
    """An attempt for each capability of optimizers and of loss scaling."""
    return {capability: partial(attempt, backend) for capability, attempt in _OF_OPTIMIZERS.items()}
