"""Attempts with Keras' own calls on PyTorch, without this adapter's guards."""

from __future__ import annotations

from functools import partial

import keras
import torch

from frameworks.contract import Attempt, Capability
from frameworks.keras_common.backend import scalars
from frameworks.keras_common.optimizer_probes import optimizer_attempts
from frameworks.keras_common.precision_probes import OF_POLICIES
from frameworks.torch.keras.backend import BACKEND


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


_OWN: dict[Capability, Attempt] = {
    Capability.PEAK_BYTES: _peak,
    Capability.RANKS_REPLICATED: _distributed,
    Capability.RANKS_OPTIMIZER: _distributed,
    Capability.RANKS_GRADIENTS: _distributed,
    Capability.RANKS_FULL: _distributed,
    Capability.RANKS_HYBRID: _distributed,
}
