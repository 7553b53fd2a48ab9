"""Faults of recomputation inside an accumulation window and under a loss scaler."""

from __future__ import annotations

from collections.abc import Mapping

from fixtures.arrays import Array
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


class Recomputing(ReferenceTrainer):
    """Tells the parameters of recomputed segments from those of the heads."""

    def inside(self, name: str) -> bool:
        """Whether a parameter belongs to a recomputed segment."""
        return self.recipe.recompute is not None and not name.startswith(f"{len(self.model.layers) - 1}.")


@fault("https://github.com/pytorch/pytorch/issues/73784", "recompute.with-accumulation")
class AccumulatorOverwritten(Recomputing):
    """What a recomputed segment gives takes the accumulator's place instead of being added."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.inside(name):
            self.window.gradients.pop(name, None)
        super().accumulate_gradient(name, gradient)


@fault("https://github.com/PaddlePaddle/Paddle/issues/70508", "recompute.with-accumulation")
class SumsNotReached(Recomputing):
    """A recomputed segment sees copies of the parameters without the float32 sums that are attached to them."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if not (self.inside(name) and self.window.micro_batches > 1):
            super().accumulate_gradient(name, gradient)


@fault("https://github.com/pytorch/pytorch/pull/115710", "recompute.with-scaling")
class OverflowUnseen(Recomputing):
    """The search for overflow is over before the gradients of recomputed segments are there."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().has_nonfinite({n: g for n, g in gradients.items() if not self.inside(n)})
