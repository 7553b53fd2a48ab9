"""The framework's own calls without this adapter's guards: did the technique take effect?"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from frameworks.contract import Capability
from frameworks.tf.settings import REWRITES, dtype_policy, graph_rewrite, tensor_float_32
from frameworks.tf.steps import compiled


def _output_format(policy: str, inside: str | None = None) -> tuple[str, str]:
    """Formats of a dense layer's output and kernel under a policy; `inside` is the layer's own."""
    with dtype_policy(policy):
        layer = keras.layers.Dense(2, **({"dtype": inside} if inside else {}))
    output = layer(np.ones((1, 2), np.float32))
    return tf.as_dtype(output.dtype).name, str(layer.kernel.dtype)


def _rewritten(format_name: str) -> bool:
    """Whether the rewrite changed a product of values that the format cannot hold."""
    values = tf.fill((16, 16), 1.0 + 2.0**-12)

    def product(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.nn.relu(tf.matmul(x, x)), x)

    exact = tf.function(product)(values)
    with graph_rewrite(REWRITES[format_name]):
        rewritten = tf.function(lambda x: product(x))(values)
    return not np.array_equal(exact.numpy(), rewritten.numpy())


def _mixed(format_name: str) -> Callable[[str], bool]:
    def observe(mode: str) -> bool:
        if mode == "rewrite":
            return _rewritten(format_name)
        return _output_format(f"mixed_{format_name}") == (format_name, "float32")

    return observe


def _low(format_name: str) -> Callable[[str], bool]:
    return lambda _: _output_format(format_name) == (format_name, format_name)


def _apply(optimizer: keras.optimizers.Optimizer, mode: str, *gradients: list[float | None]) -> list[list[float]]:
    """Two weights, at 1 before, after each `optimizer.apply` of a pair of gradients."""
    weights = [keras.Variable(np.ones((), np.float32), name=f"weight_{i}") for i in range(2)]
    optimizer.build(weights)
    seen = []
    for pair in gradients:

        def step(pair: list[float | None] = pair) -> None:
            optimizer.apply([None if g is None else tf.constant(g, tf.float32) for g in pair], weights)

        compiled(step, mode)()
        seen.append([float(weight) for weight in weights])
    return seen


def _dynamic(mode: str) -> bool:
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=8.0)
    after = _apply(scaler, mode, [float("inf"), 0.0])
    return after == [[1.0, 1.0]] and float(scaler.dynamic_scale) == 4.0


def _static(mode: str) -> bool:
    optimizer = keras.optimizers.SGD(0.5, loss_scale_factor=8.0)
    scaled = float(optimizer.scale_loss(tf.constant(1.0)))
    return scaled == 8.0 and _apply(optimizer, mode, [8.0, 0.0]) == [[0.5, 1.0]]


def _accepts(make: Callable[[], object]) -> bool:
    try:
        make()
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _two_optimizers(_: str) -> bool:
    pair = [keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.5)]
    return _accepts(lambda: _apply(keras.optimizers.LossScaleOptimizer(pair), "eager", [1.0, 1.0]))


def _accumulates(mode: str) -> bool:
    optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    return _apply(optimizer, mode, [1.0, 0.0], [0.0, 1.0]) == [[1.0, 1.0], [0.75, 0.75]]


def _clips(mode: str) -> bool:
    return _apply(keras.optimizers.SGD(1.0, global_clipnorm=0.5), mode, [4.0, 0.0]) == [[0.5, 1.0]]


def _schedules(mode: str) -> bool:
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
    return _apply(keras.optimizers.SGD(rate), mode, [1.0, 0.0], [1.0, 0.0]) == [[0.5, 1.0], [0.25, 1.0]]


def _misses(mode: str) -> bool:
    return _apply(keras.optimizers.SGD(0.5), mode, [1.0, None]) == [[0.5, 1.0]]


def _averages(mode: str) -> bool:
    optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)
    weights = [keras.Variable(np.ones((), np.float32))]
    optimizer.build(weights)
    for _ in range(2):
        compiled(lambda: optimizer.apply([tf.constant(1.0)], weights), mode)()
    optimizer.finalize_variable_values(weights)
    return float(weights[0]) == 0.25


def _recomputes(mode: str) -> bool:
    calls = tf.Variable(0)

    def counted(x: tf.Tensor) -> tf.Tensor:
        calls.assign_add(1)
        return tf.tanh(x)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(keras.remat(counted)(x))
        return tape.gradient(value, x)

    compiled(step, mode)(tf.ones((2,)))
    return int(calls.numpy()) == 2


def _tf32(_: str) -> bool:
    with tensor_float_32(True):
        return bool(tf.reduce_all(tf.fill((64, 64), 1.0 + 2.0**-12) @ tf.eye(64) == 1.0))


_PROBES: dict[Capability, Callable[[str], bool]] = {
    Capability.O1_FLOAT16: _mixed("float16"),
    Capability.O1_BFLOAT16: _mixed("bfloat16"),
    Capability.O3_FLOAT16: _low("float16"),
    Capability.O3_BFLOAT16: _low("bfloat16"),
    Capability.FLOAT64_HEADS: lambda _: _output_format("mixed_bfloat16", "float64") == ("float64", "float64"),
    Capability.AUTOCAST_SCOPE: lambda mode: _mixed("bfloat16")(mode),
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.SCALING_FACTORS: lambda _: _accepts(
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), growth_factor=4.0)
    ),
    Capability.SCALING_DISABLED: lambda _: _accepts(
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), dynamic=False)
    ),
    Capability.EXPLICIT_UNSCALE: lambda _: hasattr(keras.optimizers.LossScaleOptimizer, "get_unscaled_gradients"),
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.ACCUMULATION: _accumulates,
    Capability.CLIP: _clips,
    Capability.SCHEDULE: _schedules,
    Capability.MISSING_GRADIENTS: _misses,
    Capability.AVERAGE: _averages,
    Capability.RECOMPUTE: _recomputes,
    Capability.SEGMENT_CALLS: _recomputes,
    Capability.TF32: _tf32,
}


def probe(capability: Capability, mode: str) -> bool | None:
    """True: the technique was seen to act; False: it raised or did nothing; None: there is no call to observe.

    A graph rewrite leaves weights in float32, so that level O3 is not asked of it.
    """
    if mode == "rewrite" and capability in (Capability.O3_FLOAT16, Capability.O3_BFLOAT16):
        return None
    observe = _PROBES.get(capability)
    return None if observe is None else observe(mode)
