"""Attempts with Keras' own calls on JAX, without this adapter's guards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import orbax.checkpoint as ocp

from fixtures.arrays import Array
from frameworks.contract import Attempt, Capability, RecomputeCase, RecomputeResult
from frameworks.jax.core.arrays import wide_formats
from frameworks.jax.keras.backend import BACKEND
from frameworks.jax.training.recompute import differentiated
from frameworks.keras_common.optimizer_probes import optimizer_attempts
from frameworks.keras_common.precision_probes import OF_POLICIES, wide_head
from frameworks.keras_common.recompute import Function, recomputed


def _wide_head() -> bool:
    with wide_formats(True):
        return wide_head()


def _misses() -> bool:
    """Whether JAX gives nothing for a weight that the loss does not reach."""
    gradients: list[Any] = jax.grad(lambda own: 2.0 * own[0])([jnp.ones(()), jnp.ones(())])
    return gradients[1] is None


# recomputation


def _counted(depth: int) -> int:
    """Number of calls of a function in a step, within so many `keras.remat`."""
    begun: list[int] = []

    def count_call(_: Any) -> None:
        begun.append(1)

    def function(x: jax.Array) -> jax.Array:
        jax.debug.callback(count_call, x[0])
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


def remat_case(case: RecomputeCase, x: Array, w: Array, variant: str, place: jax.Device) -> RecomputeResult:
    """One case of `Framework.recompute`; the framework's own exceptions leave this call."""

    def run(function: Function, *args: Any, **named: Any) -> jax.Array:
        return recomputed(function, variant)(*args, **named)

    return differentiated(case, x, w, run, place)


def _cases() -> bool:
    x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    (place,) = jnp.zeros(()).devices()
    plain, result = (remat_case(case, x, w, "keras.remat", place) for case in ("plain", "positional"))
    return result.w is not None and plain.w is not None and np.allclose(result.w, plain.w)


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


def _keeps_output_gradient(wrap: Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]) -> bool:
    """Whether what is computed on the way through a wrapped function can be seen, and the gradient for it."""

    def step(zero: jax.Array) -> tuple[jax.Array, jax.Array]:
        inside = []

        def function(x: jax.Array) -> jax.Array:
            inside.append(jnp.tanh(x) + zero)
            return 2.0 * inside[-1]

        value = jnp.sum(wrap(function)(jnp.ones((2,))))
        return value, inside[0]

    gradient, output = jax.jit(jax.grad(step, has_aux=True))(jnp.zeros((2,)))
    return bool((gradient == 2.0).all() and (output == jnp.tanh(1.0)).all())


def shows_recomputed() -> bool:
    """Whether that holds within the recomputation call."""
    return _keeps_output_gradient(keras.remat)


ATTEMPTS: dict[Capability, Attempt] = {
    **OF_POLICIES,
    **optimizer_attempts(BACKEND),
    Capability.FLOAT64_HEADS: _wide_head,
    Capability.MISSING_GRADIENTS: _misses,
    Capability.RECOMPUTE: lambda: _counted(1) == 2,
    Capability.RECOMPUTE_NESTED: _nested,
    Capability.RECOMPUTE_CASES: _cases,
    Capability.SEGMENT_CALLS: lambda: _counted(1) == 2,
    Capability.CHECKPOINT: _restores,
    Capability.SAVED_BYTES: lambda: _residuals(jnp.sin) == 256,
    Capability.PEAK_BYTES: _peak,
    Capability.TRACE: lambda: _keeps_output_gradient(lambda function: function),
}
