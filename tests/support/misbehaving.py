"""Twins of the reference that misbehave as a framework may: they leak, refuse, waver, hang or abort."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Attempt, Capability, Declaration, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer


class Leaky(ReferenceFramework):
    """Every new trainer leaves a process-wide counter changed."""

    trainers: ClassVar[int] = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        type(self).trainers += 1
        return super().trainer(model, recipe, weights)

    def global_state(self) -> dict[str, str]:
        return {**super().global_state(), "trainers": str(self.trainers)}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        super().restore_global_state(state)
        type(self).trainers = int(state["trainers"])


class Refusing(ReferenceFramework):
    """Declares that it does not clip, and refuses schedules that it declares to follow."""

    def declares(self, capability: Capability) -> Declaration:
        if capability is Capability.CLIP:
            return Declaration(False, "gradients are never clipped here")
        return super().declares(capability)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.CLIP: bool}

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        if recipe.schedule is not None:
            raise Unsupported(Capability.SCHEDULE, "schedules are not followed after all")
        return super().trainer(model, recipe, weights)


class Restless(ReferenceFramework):
    """No two of its runs begin with the same weights."""

    _runs = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        self._runs += 1
        given = model.weights(recipe.seed) if weights is None else weights
        factor = 1.0 + self._runs / 1024.0
        moved = {name: (value * factor).astype(value.dtype) for name, value in given.items()}
        return super().trainer(model, recipe, moved)


class _AbortingTrainer(ReferenceTrainer):
    def scaler_settings(self) -> dict[str, float]:
        os.abort()


class Aborting(ReferenceFramework):
    """Reading its scaler's settings takes the interpreter with it."""

    trainer_class = _AbortingTrainer


class _AbortingTrainerAtOnce(ReferenceTrainer):
    def sync_masters(self) -> None:
        os.abort()


class AbortingAtOnce(ReferenceFramework):
    """Making a trainer takes the interpreter with it."""

    trainer_class = _AbortingTrainerAtOnce


class _HangingTrainer(ReferenceTrainer):
    def scaler_settings(self) -> dict[str, float]:
        time.sleep(3600.0)
        return super().scaler_settings()


class Hanging(ReferenceFramework):
    """Reading its scaler's settings takes an hour."""

    trainer_class = _HangingTrainer


class Flaky(ReferenceFramework):
    """Is wrong in the first run that asks it, and right in later ones; the file that FLAKY names remembers that one."""

    def steady(self) -> bool:
        """Whether this process belongs to another run than the first."""
        path = Path(os.environ["FLAKY"])
        if not path.exists():
            path.write_text(str(os.getppid()))
        return path.read_text() != str(os.getppid())
