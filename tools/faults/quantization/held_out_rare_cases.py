"""Faults of low-bit layers and their state in rare cases: a skipped update, an odd matrix, a long history."""

from __future__ import annotations

from fixtures.arrays import Array
from fixtures.recipe import Qat, StaticScaling
from frameworks.reference.quantization.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", "quantization.ranges-follow")
class SkippedUpdatesFreezeRanges(ReferenceTrainer):
    """Skipped updates count too where QAT ranges are to be frozen after so many applied ones."""

    attempts = 0

    def _step(self, rate: float) -> bool:
        skipped = super()._step(rate)
        self.attempts += 1
        return skipped

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.attempts = self.steps

    def observes(self) -> bool:
        asked = self.recipe.quantization
        freeze = asked.freeze if isinstance(asked, Qat) else None
        return super().observes() and (freeze is None or self.attempts < freeze)


@fault("", "quantization.survives-saving")
class OddRowOfInt4IsLostInALoad(ReferenceQuantizedModel):
    """The last row of a 4-bit weight with an odd number of rows, which has half a byte to itself, is zero after a
    load."""

    def loaded(self, arrays: dict[str, Array]) -> dict[str, Array]:
        arrays = super().loaded(arrays)
        for name, shape in self._shapes.items():
            if self._rule.weight.high < 8 and shape[0] % 2 and f"codes/{name}" in arrays:
                arrays[f"codes/{name}"][-1] = 0
        return arrays


@fault("", "formats.delayed-scaling")
class ReadsSixteenOfTheHistory(ReferenceDelayedProduct):
    """A scale follows the last 16 steps at most, however long the requested history is."""

    def most(self, maxima: Array) -> float:
        return super().most(maxima[:16])


@fault("", "formats.float8-skips")
class StaticSkipMovesTheHistory(ReferenceTrainer):
    """A window that is skipped under a constant loss scale moves the amax history, which was to stay."""

    def end_of_window(self, skipped: bool) -> None:
        super().end_of_window(skipped and not isinstance(self.recipe.scaling, StaticScaling))
