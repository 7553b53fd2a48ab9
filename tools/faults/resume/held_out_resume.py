"""Held-out faults of resume: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from fixtures.recipe import SGD, Adam
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/m2lines/Samudra/issues/282", "resume.bit-identical")
class AverageRestartsAfterLoad(ReferenceTrainer):
    """The number of updates that the average has taken in is not restored: it comes back whole, and the first update
    after the load replaces it with a copy of the weights."""

    _anew = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._anew = True

    def move_average(self) -> None:
        if self._anew and self.averages:
            self.averages = dict(self.masters)
        else:
            super().move_average()
        self._anew = False


@fault("", "resume.unclaimed-is-refused")
class SaveOfAnotherOptimizerIsTaken(ReferenceTrainer):
    """Which optimizer a save is of is not looked at: a run of plain gradient descent takes one of Adam and drops its
    moments in silence, and AdamW takes those of Adam.
    """

    def _identity(self) -> str:
        optimizer = self.recipe.optimizer
        if isinstance(optimizer, Adam) and optimizer.state_bits == 8:
            return super()._identity()
        recipe, self.recipe = self.recipe, self.recipe.replace(optimizer=SGD())
        try:
            return super()._identity()
        finally:
            self.recipe = recipe
