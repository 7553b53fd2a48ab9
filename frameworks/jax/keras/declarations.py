"""Unsupported capabilities of Keras on JAX, with reasons, and its conventions."""

from __future__ import annotations

from dataclasses import replace

from frameworks.contract import Capability
from frameworks.keras_common import declarations as keras_parts
from frameworks.keras_common.operations import NO_LISTS

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
