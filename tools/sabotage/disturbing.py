"""Sabotages that perturb results: noise, NaN, other formats, runs that never repeat."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Precision, Recipe
from frameworks.contract import Capability, Gradients, OpResult, State, Trainer, Update
from tools.sabotage.delegates import Sabotaged, SabotagedTrainer


class NoisyLoss(SabotagedTrainer):
    """Every loss is far too large, by a different amount at each report."""

    _draws = itertools.count(1)

    def _noisy(self, loss: float) -> float:
        """A loss that is off by up to itself plus one, differently each time (a golden-section sequence)."""
        return loss + (abs(loss) + 1.0) * (0.5 + next(self._draws) * (math.sqrt(5.0) - 1.0) / 2.0 % 1.0 / 2.0)

    def accumulate(self, batch: Batch, items: int) -> float:
        return self._noisy(self.real.accumulate(batch, items))

    def apply(self) -> Update:
        update = self.real.apply()
        losses = tuple(map(self._noisy, update.micro_losses))
        return replace(update, loss=self._noisy(update.loss), micro_losses=losses)


class OtherSettings(SabotagedTrainer):
    """Settings read back differ from those that were set."""

    _readings = itertools.count(1)

    def scaler_settings(self) -> dict[str, float]:
        return {name: 3.0 * value + next(self._readings) for name, value in self.real.scaler_settings().items()}


class OtherDeclarations(Sabotaged):
    """Probes contradict declarations."""

    def probe(self, capability: Capability) -> bool | None:
        return not self.real.declares(capability).supported


class LookingDisturbs(SabotagedTrainer):
    """Saving, restoring and predicting each make the parameters larger by an eighth."""

    reads = ("parameters",)
    _touched = 0

    def save(self, path: Path) -> None:
        self.real.save(path)
        self._touched += 1

    def restore(self, path: Path) -> None:
        self.real.restore(path)
        self._touched += 1

    def predict(self, inputs: Array) -> dict[str, Array]:
        self._touched += 1
        return self.real.predict(inputs)

    def altered(self, read: str, arrays: State) -> dict[str, Array]:
        factor = 1.0 + self._touched / 8.0
        return {name: (value * factor).astype(value.dtype) for name, value in arrays.items()}


class EndsInNaN(SabotagedTrainer):
    """Gradients are NaN, and so is every parameter after the first update."""

    reads = ("parameters", "master_parameters", "gradients")
    _spoilt = False

    def apply(self) -> Update:
        self._spoilt = True
        return self.real.apply()

    def apply_gradients(self, *window: Gradients, **asked: Any) -> Update:
        self._spoilt = True
        return self.real.apply_gradients(*window, **asked)

    def altered(self, read: str, arrays: State) -> dict[str, Array]:
        spoilt = self._spoilt or read == "gradients"
        return {name: np.full_like(value, np.nan) if spoilt else value for name, value in arrays.items()}


class NotANumber(Sabotaged):
    """Operations return NaN."""

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        result = self.real.run_op(op, *arrays)
        value = result.value if result.value.dtype.kind in "iub" else np.full_like(result.value, np.nan)
        return OpResult(value, result.dtype)


class OtherFormats(SabotagedTrainer):
    """Values are returned in another format than their own."""

    reads = ("parameters", "optimizer_state", "scaler_state", "gradients")

    def altered(self, read: str, arrays: State) -> dict[str, Array]:
        """Everything in half precision, or in single where it was half."""
        with np.errstate(over="ignore"):
            return {n: a.astype(np.float32 if a.dtype.itemsize == 2 else np.float16) for n, a in arrays.items()}


class DriftingScale(SabotagedTrainer):
    """The reported scale triples with every update, and differs before and after an update."""

    _updates = 0

    def apply(self) -> Update:
        return self._moved(self.real.apply())

    def apply_gradients(self, *window: Gradients, **asked: Any) -> Update:
        return self._moved(self.real.apply_gradients(*window, **asked))

    def _moved(self, update: Update) -> Update:
        self._updates += 1
        factor = 3.0**self._updates
        return replace(update, scale_before=update.scale_before * factor, scale_after=update.scale_after * factor)


_steps = itertools.count(1)


def another() -> float:
    """A factor between 1 and 2, another one each time (a golden-section sequence)."""
    return 1.0 + next(_steps) * (math.sqrt(5.0) - 1.0) / 2.0 % 1.0


class RestlessRuns(Sabotaged):
    """No two runs begin with the same weights."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        return super().trainer(model, recipe, self.start(model, recipe, weights))

    def start(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> Mapping[str, Array] | None:
        """The weights that a run begins with."""
        given, factor = model.weights(recipe.seed) if weights is None else weights, another()
        return {n: (w * factor).astype(w.dtype) for n, w in given.items()}


class TechniquesDisturb(RestlessRuns):
    """A run with any technique starts from other weights, and an operation in a scope gets other operands."""

    _scopes = 0

    def start(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> Mapping[str, Array] | None:
        plain = Recipe(recipe.optimizer, clip=recipe.clip, schedule=recipe.schedule, seed=recipe.seed)
        return weights if recipe == plain else super().start(model, recipe, weights)

    @contextmanager
    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> Generator[None]:
        self._scopes += 1
        try:
            with self.real.autocast(precision, enabled=enabled, wide=wide, low=low):
                yield
        finally:
            self._scopes -= 1

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        def moved(array: Array) -> Array:
            return (array * another()).astype(array.dtype) if array.dtype.kind not in "iub" else array

        return self.real.run_op(op, *(moved(array) for array in arrays) if self._scopes else arrays)


class RestlessSettings(Sabotaged):
    """Process-wide settings read differently each time."""

    _readings = itertools.count()

    def global_state(self) -> dict[str, str]:
        return {name: f"{value} ({next(self._readings)})" for name, value in self.real.global_state().items()}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        self.real.restore_global_state({name: value.rpartition(" (")[0] for name, value in state.items()})
