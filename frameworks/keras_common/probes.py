"""Unsupported capabilities of Keras on every backend, with reasons, and its conventions."""

from collections.abc import Callable
from functools import partial

import keras
import numpy as np

from frameworks.contract import Attempt, Capability, Conventions, ScalerRule
from frameworks.keras_common.optimizers import REFUSED_OPTIONS
from frameworks.keras_common.settings import KerasBackend, apply_updates, dtype_policy, number, scalars

_O2 = "Keras has no dtype policy of low-precision weights with float32 masters"
_UNSCALING = "Keras unscales inside the optimizer's update; there is no call to unscale by hand"
_NO_MULTI = "this version of Keras has no MultiOptimizer, and another optimizer has no groups"

SUPPORTED = frozenset(
    {
        Capability.FLOAT64_HEADS,
        Capability.OPERATIONS,
        Capability.STATIC_SCALING,
        Capability.TWO_LOSSES,
        Capability.ACCUMULATION,
        Capability.RECOMPUTE,
        Capability.RECOMPUTE_NESTED,
        Capability.RECOMPUTE_CASES,
        Capability.SEGMENT_CALLS,
        Capability.CLIP,
        Capability.SCHEDULE,
        Capability.MISSING_GRADIENTS,
        Capability.AVERAGE,
        Capability.NESTEROV,
        Capability.AMSGRAD,
        Capability.ADAGRAD,
        Capability.RMSPROP,
        Capability.DECAY_EXCLUDED,
        Capability.FEED,
        Capability.CHECKPOINT,
        Capability.TRACE,
        Capability.LAYER_REUSE,
        Capability.USER_FUNCTION,
        *((Capability.TIED_WEIGHTS,) if hasattr(keras.layers, "ReversibleEmbedding") else ()),
    }
)
"""What Keras has on every backend, unless the backend's refusals have it."""
REFUSED: dict[Capability, str] = {
    **REFUSED_OPTIONS,
    Capability.O2_FLOAT16: _O2,
    Capability.O2_BFLOAT16: _O2,
    Capability.SCALING_FACTORS: "LossScaleOptimizer always doubles and halves its scale",
    Capability.SCALING_DISABLED: "LossScaleOptimizer refuses dynamic=False; one leaves it out instead",
    Capability.EXPLICIT_UNSCALE: _UNSCALING,
    Capability.SECOND_UNSCALE: _UNSCALING,
    Capability.PARTIAL_WINDOW: "Keras has no call that ends a window early; an incomplete one is carried over",
}
if not hasattr(keras.optimizers, "MultiOptimizer"):
    REFUSED |= dict.fromkeys((Capability.GROUPS, Capability.GROUP_RATES, Capability.TWO_OPTIMIZERS), _NO_MULTI)

_SCALER = ScalerRule(
    initial=2.0**15, growth=2.0, backoff=0.5, interval=2000, counts="micro-batches", nonfinite="scaled", latched=False
)

CONVENTIONS = Conventions(
    adam_default_epsilon=1e-7,
    adam_epsilon="inside",
    adam_correction="float32",
    adam_counts="optimizer",
    momentum_rate="inside",
    amsgrad="moments",
    adagrad_epsilon="inside",
    rmsprop_epsilon="inside",
    rmsprop_rate="inside",
    adafactor_decay="first",
    running_variance="biased",
    clip_epsilon=0.0,
    nonfinite_micro_batch="drop-micro-batch",
    remainder="carry",
    partial_overflow="skip-all",
    static_skips=False,
    accumulates="unscaled",
    scaler=_SCALER,
)
"""As Keras documents its optimizers, or as their source reads where the documentation is silent."""


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
