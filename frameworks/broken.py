"""Copies of the reference that each have one defect. `--framework=frameworks.broken:NAME` runs one of them."""

from contextlib import AbstractContextManager, nullcontext

from frameworks.reference import ReferenceFramework
from frameworks.reference.core.tape import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer


class _AppliesOverflow(ReferenceTrainer):
    def judge(self) -> frozenset[int]:
        return frozenset()


class AppliesOverflow(ReferenceFramework):
    """Reference whose scaler applies the update that an overflow should have skipped."""

    trainer_class = _AppliesOverflow


class _MeanOfMeans(ReferenceTrainer):
    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        return super().normalise(loss, batch_items, batch_items * self.recipe.accumulation)


class MeanOfMeans(ReferenceFramework):
    """Reference whose accumulation averages the micro-batch means without weights for their numbers of items."""

    trainer_class = _MeanOfMeans


class _RedrawsDropout(ReferenceTrainer):
    def replay_random(self, draws: int) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class RedrawsDropout(ReferenceFramework):
    """Reference whose recomputation draws new dropout masks."""

    trainer_class = _RedrawsDropout
