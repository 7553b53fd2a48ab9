"""Held-out faults of offload: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from frameworks.reference.quantization.eight_bit_state import EightBitMoments
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", "offload.acts")
class LoadedMomentsStayOnTheDevice(ReferenceTrainer):
    """A load puts the optimizer's moments on the device and does not offload them again.

    A resumed run holds on its device what it was asked to keep away.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.slots = {s: m if isinstance(m, EightBitMoments) else dict(m) for s, m in self.slots.items()}
