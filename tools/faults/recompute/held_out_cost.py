"""Held-out faults of cost: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from fixtures.model import Batch
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", "cost.bytes-repeat")
class CastsPileUp(ReferenceTrainer):
    """At O1 the low-precision copies of the weights that every earlier update was made with are held as well."""

    def saved_bytes(self, batch: Batch) -> int:
        copies = sum(2 * value.size for value in self.values.values()) if self.recipe.precision.level == "O1" else 0
        return super().saved_bytes(batch) + self.steps * copies


@fault("", "cost.accumulation-bytes")
class EarlierMicroBatchesHeld(ReferenceTrainer):
    """What a micro-batch keeps for backward is not let go before the window ends, so later ones hold that too."""

    def saved_bytes(self, batch: Batch) -> int:
        return super().saved_bytes(batch) * (1 + self.window.micro_batches)
