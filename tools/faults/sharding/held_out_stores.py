"""Faults of stores of offloaded arrays that depend on an array's kind."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import Offload
from frameworks.reference.training.offload import ArrayStore, HostStore
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


class _Float32Moments(HostStore):
    def put(self, key: str, array: Array) -> None:
        super().put(key, array.astype(np.float32).astype(np.float64) if key.startswith("slot.") else array)


@fault("", "offload.same-bits")
class OffloadedMomentsAreFloat32(ReferenceTrainer):
    """Moments in the host's memory are float32, those of float64 weights too."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _Float32Moments() if offload.to == "host" else super().make_store(offload)
