"""Unsupported capabilities of Keras on PyTorch, with reasons, and its conventions."""

from __future__ import annotations

from dataclasses import replace

from frameworks.contract import Capability
from frameworks.keras_common import declarations as keras_parts
from frameworks.keras_common.operations import NO_LISTS

CONVENTIONS = replace(keras_parts.CONVENTIONS, static_skips=False)

_CPU_REFUSED: dict[Capability, str] = {Capability.PEAK_BYTES: "PyTorch counts a GPU's allocations, and none of a CPU's"}
_DISTRIBUTION = "keras.distribution is implemented for Keras on JAX alone"
_RANKS = dict.fromkeys(
    (
        Capability.RANKS_REPLICATED,
        Capability.RANKS_OPTIMIZER,
        Capability.RANKS_GRADIENTS,
        Capability.RANKS_FULL,
        Capability.RANKS_HYBRID,
    ),
    _DISTRIBUTION,
)


def refusals(device: str) -> dict[Capability, str]:
    """Unsupported capabilities on this device, with reasons."""
    lists = {Capability.AUTOCAST_LISTS: NO_LISTS}
    return keras_parts.REFUSED | _RANKS | lists | (_CPU_REFUSED if device == "cpu" else {})
