"""Unsupported capabilities of Keras on PyTorch, with reasons and attempts by Keras' own calls."""

from __future__ import annotations

from functools import partial

import keras
import torch

from frameworks.contract import Attempt, Capability
from frameworks.keras_common.backend import scalars
from frameworks.keras_common.declarations import REFUSED
from frameworks.keras_common.operations import NO_LISTS
from frameworks.keras_common.optimizer_probes import optimizer_attempts
from frameworks.keras_common.precision_probes import OF_POLICIES
from frameworks.torch.keras.loop import BACKEND

_CPU_REFUSED: dict[Capability, str] = {Capability.PEAK_BYTES: "PyTorch counts a GPU's allocations, and none of a CPU's"}
_DISTRIBUTION = "keras.distribution is implemented for Keras on JAX alone"
_RANKS = (
    Capability.RANKS_REPLICATED,
    Capability.RANKS_OPTIMIZER,
    Capability.RANKS_GRADIENTS,
    Capability.RANKS_FULL,
    Capability.RANKS_HYBRID,
)


def refusals(device: str) -> dict[Capability, str]:
    """Unsupported capabilities on this device, with reasons."""
    lists = {Capability.AUTOCAST_LISTS: NO_LISTS}
    return REFUSED | dict.fromkeys(_RANKS, _DISTRIBUTION) | lists | (_CPU_REFUSED if device == "cpu" else {})


def _peak() -> bool:
    scalars(1)
    return torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0


def _distributed() -> bool:
    """Whether Keras' data parallelism takes this backend's devices."""
    devices = keras.distribution.list_devices()
    keras.distribution.DataParallel(devices=devices)
    return True


def attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts for each capability on a device."""
    every = OF_POLICIES | optimizer_attempts(BACKEND) | _OWN
    return {capability: partial(_on, device, attempt) for capability, attempt in every.items()}


def _on(device: str, attempt: Attempt) -> bool:
    with keras.device(device):
        return attempt()


_OWN: dict[Capability, Attempt] = {Capability.PEAK_BYTES: _peak, **dict.fromkeys(_RANKS, _distributed)}
