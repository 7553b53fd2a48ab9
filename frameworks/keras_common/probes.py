"""Attempts with Keras' optimizers, loss scaling and dtype policies, without an adapter's guards."""

from collections.abc import Callable
from functools import partial

import keras
import numpy as np

from frameworks.contract import Attempt, Capability
from frameworks.keras_common.settings import KerasBackend, apply_updates, dtype_policy, number, scalars

SGD, Scaler = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer


def _dynamic(backend: KerasBackend) -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=8.0)
    return apply_updates(backend, scaler, [float("inf"), 0.0]) == [[1.0, 1.0]] and number(scaler.dynamic_scale) == 4.0


def _factors(backend: KerasBackend) -> bool:
    """A scale that grows by 4, by any argument that may have this meaning."""
    for name in ("growth_factor", "dynamic_growth_factor", "multiplier"):
        try:
            scaler = Scaler(SGD(0.5), initial_scale=8.0, dynamic_growth_steps=1, **{name: 4.0})
        except (TypeError, ValueError):
            continue
        apply_updates(backend, scaler, [0.0, 0.0])
        return number(scaler.dynamic_scale) == 32.0
    return False


def _can_disable(backend: KerasBackend) -> bool:
    scaler = Scaler(SGD(0.5), initial_scale=8.0, dynamic=False)
    return apply_updates(backend, scaler, [float("inf"), 0.0]) != [[1.0, 1.0]]


def _manually(_: KerasBackend) -> bool:
    """A call to unscale: Keras 2 had `get_unscaled_gradients`, other frameworks have `unscale`."""
    return any("unscale" in name for name in dir(Scaler) if not name.startswith("_"))


def _pair() -> tuple[keras.optimizers.Optimizer, list[keras.Variable]]:
    weights = scalars()
    chosen = keras.optimizers.OptimizerMap(SGD(0.5), {weights[1].path: SGD(0.25)})
    return keras.optimizers.MultiOptimizer(chosen), weights


def _groups(backend: KerasBackend) -> bool:
    optimizer, weights = _pair()
    return apply_updates(backend, optimizer, [1.0, 1.0], weights=weights) == [[0.5, 0.75]]


def _two_optimizers(backend: KerasBackend) -> bool:
    optimizer, weights = _pair()
    scaler = Scaler(optimizer, initial_scale=2.0)
    after = apply_updates(backend, scaler, [float("inf"), 1.0], [1.0, 1.0], weights=weights)
    return after == [[1.0, 1.0], [0.5, 0.75]] and number(scaler.dynamic_scale) == 1.0


def _flushes(backend: KerasBackend) -> bool:
    """Two of four micro-batches, then each call that may end the window: their mean must be applied."""
    for end in range(1, 5):
        weights = scalars()
        optimizer = SGD(0.5, gradient_accumulation_steps=4)
        apply_updates(backend, optimizer, [1.0, 1.0], [1.0, 1.0], weights=weights)
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
    Capability.SCALING_DISABLED: _can_disable,
    Capability.EXPLICIT_UNSCALE: _manually,
    Capability.SECOND_UNSCALE: _manually,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.PARTIAL_WINDOW: _flushes,
    Capability.GROUPS: _groups,
}


def optimizer_attempts(backend: KerasBackend) -> dict[Capability, Attempt]:
    """An attempt for each capability of optimizers and of loss scaling."""
    return {capability: partial(attempt, backend) for capability, attempt in _OF_OPTIMIZERS.items()}


def formats_of(policy: str, inside: str | None = None) -> tuple[str, str]:
    """Formats of a dense layer's output and kernel under a policy; `inside` is the layer's own."""
    with dtype_policy(policy):
        layer = keras.layers.Dense(2, **({"dtype": inside} if inside else {}))
    output = layer(np.ones((1, 2), np.float32))
    return keras.backend.standardize_dtype(output.dtype), str(layer.kernel.dtype)


def has_mixed_policy(format_name: str) -> bool:
    """Whether a mixed policy gives float32 kernels and outputs in the format."""
    return formats_of(f"mixed_{format_name}") == (format_name, "float32")


def low(format_name: str) -> bool:
    """Whether a policy gives kernels and outputs in the format."""
    return formats_of(format_name) == (format_name, format_name)


def has_master_weights(format_name: str) -> bool:
    """Low-precision weights under any policy that names the format, with an optimizer that keeps float32 masters."""
    for policy in (format_name, f"mixed_{format_name}"):
        with dtype_policy(policy):
            layer = keras.layers.Dense(2)
        layer.build((1, 2))
        if layer.kernel.dtype != format_name:
            continue
        optimizer = keras.optimizers.Adam(2.0**-13)
        optimizer.build([layer.kernel])
        if any(v.shape == layer.kernel.shape and v.dtype == "float32" for v in optimizer.variables):
            return True
    return False


OF_POLICIES: dict[Capability, Attempt] = {
    Capability.O1_FLOAT16: partial(has_mixed_policy, "float16"),
    Capability.O1_BFLOAT16: partial(has_mixed_policy, "bfloat16"),
    Capability.O2_FLOAT16: partial(has_master_weights, "float16"),
    Capability.O2_BFLOAT16: partial(has_master_weights, "bfloat16"),
    Capability.O3_FLOAT16: partial(low, "float16"),
    Capability.O3_BFLOAT16: partial(low, "bfloat16"),
}
"""An attempt for each capability of dtype policies."""
