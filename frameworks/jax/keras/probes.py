"""Attempts with Keras' own calls on JAX, without this adapter's guards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import orbax.checkpoint as ocp

from frameworks.contract import Attempt, Capability
from frameworks.jax.arrays import wide_formats
from frameworks.jax.keras.optimizer_probes import OF_OPTIMIZERS
from frameworks.jax.keras.recompute import recompute
from frameworks.jax.keras.settings import dtype_policy

# precision


def _formats(policy: str, inside: str | None = None) -> tuple[str, str]:
    """Formats of a dense layer's output and kernel under a policy; `inside` is the layer's own."""
    with dtype_policy(policy):
        layer = keras.layers.Dense(2, **({"dtype": inside} if inside else {}))
    output = layer(np.ones((1, 2), np.float32))
    return str(output.dtype), str(layer.kernel.dtype)


def _mixed(format_name: str) -> bool:
    return _formats(f"mixed_{format_name}") == (format_name, "float32")


def _low(format_name: str) -> bool:
    return _formats(format_name) == (format_name, format_name)


def _wide_head() -> bool:
    with wide_formats(True):
        return _formats("mixed_bfloat16", "float64") == ("float64", "float64")


def _mastered(format_name: str) -> bool:
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


# recomputation


def _counted(depth: int) -> int:
    """Number of calls of a function in a step, within so many `keras.remat`."""
    begun: list[int] = []

    def told(_: Any) -> None:
        begun.append(1)

    def function(x: jax.Array) -> jax.Array:
        jax.debug.callback(told, x[0])
        return jnp.sin(x)

    wrapped: Callable[[jax.Array], jax.Array] = function
    for _ in range(depth):
        wrapped = keras.remat(wrapped)
    jax.block_until_ready(jax.jit(jax.grad(lambda x: jnp.sum(wrapped(x))))(jnp.ones((2,))))
    jax.effects_barrier()
    return len(begun)


def _residuals(function: Callable[[jax.Array], jax.Array]) -> int:
    _, pull = jax.vjp(function, jnp.ones((64,)))
    return sum(array.nbytes for array in jax.tree.leaves(pull))


def _chain(x: jax.Array) -> jax.Array:
    for _ in range(4):
        x = jnp.sin(x)
    return x


def _nested() -> bool:
    inner = keras.remat(_chain)
    return _residuals(keras.remat(lambda x: inner(inner(x)))) < _residuals(lambda x: inner(inner(x)))


def _cases() -> bool:
    x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    plain, found = (recompute(case, x, w, "keras.remat") for case in ("plain", "positional"))
    return found.w is not None and plain.w is not None and np.allclose(found.w, plain.w)


# state and memory


def _restores() -> bool:
    dense = keras.layers.Dense(2)
    dense.build((1, 2))
    values = [variable.value for variable in dense.trainable_variables]
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/run", values)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(f"{folder}/run", [jnp.zeros_like(value) for value in values])
    return all(bool((a == b).all()) for a, b in zip(restored, values, strict=True))


def _peak() -> bool:
    (device,) = jnp.ones(()).devices()
    return device.memory_stats() is not None


# what is inside


def _shown(wrap: Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]) -> bool:
    """Whether what is computed on the way through a wrapped function can be seen, and the gradient for it."""

    def step(zero: jax.Array) -> tuple[jax.Array, jax.Array]:
        inside = []

        def function(x: jax.Array) -> jax.Array:
            inside.append(jnp.tanh(x) + zero)
            return 2.0 * inside[-1]

        value = jnp.sum(wrap(function)(jnp.ones((2,))))
        return value, inside[0]

    gradient, seen = jax.jit(jax.grad(step, has_aux=True))(jnp.zeros((2,)))
    return bool((gradient == 2.0).all() and (seen == jnp.tanh(1.0)).all())


def shows_recomputed() -> bool:
    """Whether that holds within the recomputation call."""
    return _shown(keras.remat)


ATTEMPTS: dict[Capability, Attempt] = {
    **OF_OPTIMIZERS,
    Capability.O1_FLOAT16: partial(_mixed, "float16"),
    Capability.O1_BFLOAT16: partial(_mixed, "bfloat16"),
    Capability.O2_FLOAT16: partial(_mastered, "float16"),
    Capability.O2_BFLOAT16: partial(_mastered, "bfloat16"),
    Capability.O3_FLOAT16: partial(_low, "float16"),
    Capability.O3_BFLOAT16: partial(_low, "bfloat16"),
    Capability.FLOAT64_HEADS: _wide_head,
    Capability.RECOMPUTE: lambda: _counted(1) == 2,
    Capability.RECOMPUTE_NESTED: _nested,
    Capability.RECOMPUTE_CASES: _cases,
    Capability.SEGMENT_CALLS: lambda: _counted(1) == 2,
    Capability.CHECKPOINT: _restores,
    Capability.SAVED_BYTES: lambda: _residuals(jnp.sin) == 256,
    Capability.PEAK_BYTES: _peak,
    Capability.TRACE: lambda: _shown(lambda function: function),
}
