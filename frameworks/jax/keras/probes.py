"""What Keras on JAX does not support, with reasons, and attempts with Keras' own calls without guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import keras

from fixtures.arrays import Array
from frameworks.contract import Attempt, Capability, RecomputeCase, RecomputeResult
from frameworks.jax.core.arrays import has_peak
from frameworks.jax.keras.backend import BACKEND
from frameworks.jax.training.recompute import differentiate_case
from frameworks.keras_common import probes as keras_parts
from frameworks.keras_common.operations import NO_LISTS, Function, wrap_in_remat
from frameworks.keras_common.probes import OF_POLICIES, optimizer_attempts

INSIDE_RECOMPUTED = "nothing outside keras.remat may refer to what is computed inside: JAX raises UnexpectedTracerError"

_LAYOUT = (
    "Keras makes an optimizer's variables with the layout of their weight, and a LayoutMap's entries do not matter"
)
_REFUSED: dict[Capability, str] = {
    **keras_parts.REFUSED,
    Capability.AUTOCAST_LISTS: NO_LISTS,
    Capability.MISSING_GRADIENTS: "jax.grad gives zeros for a variable that the loss does not reach, never nothing",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: "memory_stats of a CPU device is None: JAX keeps none of its allocator",
    Capability.RANKS_OPTIMIZER: _LAYOUT,
    Capability.RANKS_GRADIENTS: _LAYOUT,
    Capability.RANKS_LOW_REDUCTION: "under jax.jit the compiler places the reduction over the devices, in the format "
    "of the gradient, and keras.distribution has no setting for another one",
    Capability.RANKS_LOST: "the ranks are devices of one program in one process, which ends as a whole",
    Capability.RANKS_COLLECTIVES: "under jax.jit the compiler places the reductions and makes one of several, and a "
    "profile counts what it has made, not the gradients in it",
}


def refusals(device: str) -> dict[Capability, str]:
    """Unsupported capabilities on this device, with reasons."""
    return _REFUSED | (_CPU_REFUSED if device == "cpu" else {})


CONVENTIONS = replace(keras_parts.CONVENTIONS, batch_statistics="whole", compiled=True)


def _misses() -> bool:
    """Whether JAX gives nothing for a weight that the loss does not reach."""
    gradients: list[Any] = jax.grad(lambda own: 2.0 * own[0])([jnp.ones(()), jnp.ones(())])
    return gradients[1] is None


# recomputation
def remat_case(case: RecomputeCase, x: Array, w: Array, variant: str, device: jax.Device) -> RecomputeResult:
    """One case of `Framework.recompute`; the framework's own exceptions leave this call."""

    def run(function: Function, *args: Any, **named: Any) -> jax.Array:
        return wrap_in_remat(function, variant)(*args, **named)

    return differentiate_case(case, x, w, run, device)


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
    Capability.MISSING_GRADIENTS: _misses,
    Capability.PEAK_BYTES: has_peak,
}
