"""Attempts with the framework's own calls, without this adapter's guards."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf

from fixtures.model import Batch
from frameworks.base.capability_attempts import Make
from frameworks.contract import Attempt, Capability
from frameworks.keras_common.framework import keras_attempts
from frameworks.operations import CATALOGUE
from frameworks.tf.core.settings import REWRITES, graph_rewrite, rewrite_lists, tensor_float_32
from frameworks.tf.core.steps import (
    VARIANTS,
    TapeBackend,
    captured_bytes,
    compile_function,
    graph_operations,
    recomputing,
    run_op,
)


def attempts(mode: str, device: str, run: Make) -> dict[Capability, Attempt]:
    """Attempts for each capability in a mode, on the device with TensorFlow's name `device`."""
    own: dict[Capability, Attempt] = {
        Capability.TF32: _tf32,
        Capability.SAVED_BYTES: partial(_counts_saved_bytes, mode),
        Capability.PEAK_BYTES: _peak,
    }
    every = keras_attempts(TapeBackend(mode), run) | own | (_OF_REWRITES if mode == "rewrite" else {})
    return {capability: partial(_at, device, attempt) for capability, attempt in every.items()}


def _at(device: str, attempt: Attempt) -> bool:
    with tf.device(device):
        return attempt()


def _rewritten(format_name: str) -> bool:
    """Returns whether the rewrite changed a product of values that the format cannot hold."""
    values = tf.fill((16, 16), 1.0 + 2.0**-12)

    def chain(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.nn.relu(tf.matmul(x, x)), x)

    exact = tf.function(chain)(values)
    with graph_rewrite(REWRITES[format_name]):
        rewritten = tf.function(lambda x: chain(x))(values)
    return not np.array_equal(exact.numpy(), rewritten.numpy())


def _lowers_weights(format_name: str) -> bool:
    with graph_rewrite(REWRITES[format_name]):
        weight = keras.layers.Dense(2)
        tf.function(lambda x: weight(x))(tf.ones((1, 2)))
    return bool(weight.kernel.dtype == format_name)


def _follows_lists() -> bool:
    """Returns whether softmax can be named low and a matmul wide."""
    names = graph_operations(["softmax"]), graph_operations(["matmul"])
    with graph_rewrite(REWRITES["bfloat16"]), rewrite_lists(*names):
        formats = [run_op(op, CATALOGUE[op](), "rewrite").dtype for op in ("softmax", "matmul")]
    return formats == ["bfloat16", "float32"]


_OF_REWRITES: dict[Capability, Attempt] = {
    Capability.O1_FLOAT16: partial(_rewritten, "float16"),
    Capability.O1_BFLOAT16: partial(_rewritten, "bfloat16"),
    Capability.O3_FLOAT16: partial(_lowers_weights, "float16"),
    Capability.O3_BFLOAT16: partial(_lowers_weights, "bfloat16"),
    Capability.AUTOCAST_SCOPE: partial(_rewritten, "bfloat16"),
    Capability.AUTOCAST_LISTS: _follows_lists,
}


def _tf32() -> bool:
    with tensor_float_32(True):
        return bool(tf.reduce_all(tf.fill((64, 64), 1.0 + 2.0**-12) @ tf.eye(64) == 1.0))


def _counts_saved_bytes(mode: str) -> bool:
    """Returns whether the saved bytes of a step are those of its only product, in the mode's format."""
    batch = Batch(np.ones((4, 8), np.float32), {"output": np.ones((4, 8), np.float32)})
    weight = tf.Variable(np.eye(8, dtype=np.float32))

    def loss(x: tf.Tensor, targets: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.reduce_sum(tf.square(tf.tanh(tf.matmul(x, weight))) + targets["output"])

    def step(x: tf.Tensor, targets: dict[str, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(x, targets)
        return tape.gradient(value, weight)

    if mode == "eager":
        x, targets = tf.constant(batch.inputs), {"output": tf.constant(batch.targets["output"])}
        before = _statistics()["current"]
        with tf.GradientTape():
            loss(x, targets)
            return _statistics()["current"] - before == 4 * 8 * 4
    with graph_rewrite(REWRITES["bfloat16"] if mode == "rewrite" else None):
        result = captured_bytes(step if mode == "xla" else loss, batch)
    return result == 4 * 8 * (2 if mode == "rewrite" else 4)


def _statistics() -> dict[str, int]:
    return dict(tf.config.experimental.get_memory_info(_place()))


def _place() -> str:
    """The device of the open scope, such as "GPU:0"."""
    spec = tf.DeviceSpec.from_string(tf.constant(0.0).device)
    return f"{spec.device_type}:{spec.device_index}"


def _peak() -> bool:
    """Returns whether the allocator's peak grows with a tensor of 64 KiB."""
    tf.config.experimental.reset_memory_stats(_place())
    before = _statistics()["peak"]
    values = tf.ones((128, 128))
    return bool(_statistics()["peak"] - before >= 4 * tf.size(values).numpy())


def _keeps_output_gradient(mode: str, variant: str) -> bool:
    """Returns whether a tape gives the gradient for an intermediate value of a recomputed function."""

    def step(x: tf.Tensor) -> tf.Tensor:
        inside = []

        def function(x: tf.Tensor) -> tf.Tensor:
            inside.append(tf.tanh(x))
            return 2.0 * inside[-1]

        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(recomputing(function, variant)(x))
        gradient = tape.gradient(value, inside[0])
        return tf.zeros_like(x) if gradient is None else gradient

    return bool(np.array_equal(compile_function(step, mode)(tf.ones((2,))), [2.0, 2.0]))


def shows_recomputed(mode: str) -> bool:
    """Returns whether any recomputation call passes `_keeps_output_gradient`."""
    return any(_keeps_output_gradient(mode, variant) for variant in VARIANTS)
