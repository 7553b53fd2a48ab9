"""Faults of loads that depend on what the run made or used before."""

from __future__ import annotations

import numpy as np

from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/119168", "resume.load-order")
class LateScheduleSetsItsFirstRate(ReferenceTrainer):
    """A schedule that is made after the load sets its first rate, which it keeps until it advances."""

    _first = False

    def make_schedule(self, applied: int = 0) -> None:
        super().make_schedule(applied)
        self._first = True

    def advance_schedule(self) -> None:
        super().advance_schedule()
        self._first = False

    def learning_rate(self) -> float:
        schedule = self.recipe.schedule
        if schedule is None or not self._first:
            return super().learning_rate()
        return self.recipe.optimizer.learning_rate * schedule.factor(0)


@fault("https://github.com/PaddlePaddle/Paddle/issues/43004", "resume.load-order", "optimizer.schedules")
class ScheduleMadeThereIsOneAhead(ReferenceTrainer):
    """A schedule that is made at a later update begins with the one after it."""

    def make_schedule(self, applied: int = 0) -> None:
        super().make_schedule(applied + 1 if applied else 0)


@fault("https://github.com/pytorch/pytorch/issues/162591", "resume.load-order", "optimizer.schedules")
class ScheduleMadeThereBeginsAnew(ReferenceTrainer):
    """A schedule that is made at a later update begins with the first one."""

    def make_schedule(self, applied: int = 0) -> None:
        del applied
        super().make_schedule()


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.load-order")
class UsedScalerKeepsItsScale(ReferenceTrainer):
    """A scaler that has scaled a loss has its scale, and a load is without effect on it."""

    _used = False

    def use_scaler(self) -> None:
        super().use_scaler()
        self._used = True

    def load_part(self, part: str, arrays: Arrays) -> None:
        if part != "scaler" or not self._used:
            super().load_part(part, arrays)


@fault("https://github.com/CodefyUI/CodefyUI/pull/147", "resume.load-order")
class LoadedModelGetsNewMoments(ReferenceTrainer):
    """The optimizer begins anew for a model that is loaded after it."""

    def load_part(self, part: str, arrays: Arrays) -> None:
        super().load_part(part, arrays)
        if part == "model":
            self.slots = {slot: {n: np.zeros_like(v) for n, v in held.items()} for slot, held in self.slots.items()}
