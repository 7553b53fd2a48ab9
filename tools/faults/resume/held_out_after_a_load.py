"""Faults that a run has only once it was loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frameworks.contract import Trainer
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", "resume.bit-identical")
class AverageIsCopiedAgainAfterAnEarlyLoad(ReferenceTrainer):
    """A run that is loaded after its first update copies the weights to the average once more."""

    copies_again = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.copies_again = self.steps == 1

    def move_average(self) -> None:
        if self.recipe.average is not None and self.copies_again:
            self.averages = {
                name: self.averages[name] if name in self.frozen else w for name, w in self.masters.items()
            }
            self.copies_again = False
        else:
            super().move_average()


@fault("", "resume.bit-identical")
class ReplayCountsDrawsFromTheLoad(ReferenceTrainer):
    """After a load recomputation takes the place in dropout's stream for the number of draws since the load."""

    drawn_before = 0

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.drawn_before = self.draws

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        with super().replay_random(draws - self.drawn_before if draws >= self.drawn_before else draws):
            yield


@fault("", "resume.bit-identical")
class ResumedRunSavesItsOwnUpdatesOnly(ReferenceTrainer):
    """What a resumed run saves as the schedule's position is the number of updates since it was resumed, so that the
    second resume goes back."""

    loaded_schedule = 0
    saving = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.loaded_schedule = self.schedule

    def save(self, path: Path) -> None:
        self.saving = True
        try:
            super().save(path)
        finally:
            self.saving = False

    def save_state(self) -> Arrays:
        arrays = super().save_state()
        if self.saving:
            arrays["counters"][1] -= self.loaded_schedule
        return arrays


@fault("https://github.com/pytorch/pytorch/issues/196083", "resume.live-state")
class OpenWindowIsShared(ReferenceTrainer):
    """A run that takes the state of another one inside a window accumulates into the same gradients as the other."""

    def take(self, other: Trainer) -> None:
        super().take(other)
        if isinstance(other, ReferenceTrainer):
            self.window.gradients = other.window.gradients
