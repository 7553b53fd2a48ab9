"""Frameworks that are spoilt on purpose, so that a test whose verdict they cannot change is seen to be vacuous.

A blinding delegates to the real framework and spoils what crosses the contract. It knows no test, and the oracle stays
as it is. `BLINDINGS` holds them by name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import FLOAT32, Precision, Recipe
from frameworks.contract import (
    Capability,
    Framework,
    Gradients,
    OpResult,
    RecomputeCase,
    RecomputeResult,
    State,
    Trainer,
    Update,
)


def zeros(arrays: State) -> dict[str, Array]:
    """Zeros of the same names, shapes and formats."""
    return {name: np.zeros_like(value) for name, value in arrays.items()}


PARTS = {
    "parameter": "parameters",
    "master": "master_parameters",
    "optimizer": "optimizer_state",
    "buffer": "buffers",
    "scaler": "scaler_state",
    "accumulator": "accumulator",
    "random": "random_state",
}
"""The verb that reads a part of the whole state, by the part's prefix."""


class BlindedTrainer:
    """A trainer that passes on to `real` what it does not spoil; `update` and `state` go through the other verbs.

    Args:
        real: the run.
        again: makes another run from the same start.
    """

    def __init__(self, real: Trainer, again: Callable[[], Trainer]) -> None:
        self.real = real
        self.again = again

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def accumulate(self, batch: Batch, items: int) -> float:
        return self.real.accumulate(batch, items)

    def apply(self) -> Update:
        return self.real.apply()

    def update(self, window: Window) -> Update:
        items = sum(batch.items for batch in window)
        for batch in window:
            self.accumulate(batch, items)
        return self.apply()

    def state(self) -> dict[str, Array]:
        whole = dict(self.real.state())
        for part, verb in PARTS.items():
            whole |= {f"{part}/{name}": np.array(value) for name, value in getattr(self, verb)().items()}
        return whole


class Blinded:
    """A framework that passes on to `real` what it does not spoil, with trainers of `trainer_class`."""

    trainer_class: type[BlindedTrainer] = BlindedTrainer

    def __init__(self, real: Framework) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def asked(self, recipe: Recipe) -> Recipe:
        """What is trained instead of a recipe."""
        return recipe

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        def made() -> Trainer:
            return self.real.trainer(model, self.asked(recipe), weights)

        return cast(Trainer, self.trainer_class(made(), made))


class _WithoutGradients(BlindedTrainer):
    def gradients(self, window: Window) -> dict[str, Array]:
        return zeros(self.real.gradients(window))

    def accumulator(self) -> dict[str, Array]:
        return zeros(self.real.accumulator())

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        blank = [{n: None if g is None else np.zeros_like(g) for n, g in part.items()} for part in window]
        added = None if poison is None else {n: None if g is None else np.zeros_like(g) for n, g in poison.items()}
        return self._told(self.real.feed(*blank, unscale_calls=unscale_calls, poison=added, abandon=abandon))

    def apply(self) -> Update:
        return self._told(self.real.apply())

    def _told(self, update: Update) -> Update:
        return replace(update, gradient_norm=None if update.gradient_norm is None else 0.0)


class ZeroGradients(Blinded):
    """Gradients are zeros, read or fed; what a window's own backward pass gathers is out of the contract's reach."""

    trainer_class = _WithoutGradients


class _Frozen(BlindedTrainer):
    """Parts of the state stay as they were when they were made."""

    parts: Collection[str] = ()

    def __init__(self, real: Trainer, again: Callable[[], Trainer]) -> None:
        super().__init__(real, again)
        self.start: dict[str, dict[str, Array]] = {part: self._read(part) for part in self.parts}
        self._untrained: Trainer | None = None

    def _read(self, part: str) -> dict[str, Array]:
        return {name: np.array(value) for name, value in getattr(self.real, part)().items()}

    def _now(self, part: str) -> dict[str, Array]:
        return dict(self.start[part]) if part in self.parts else self._read(part)

    def parameters(self) -> dict[str, Array]:
        return self._now("parameters")

    def master_parameters(self) -> dict[str, Array]:
        return self._now("master_parameters")

    def optimizer_state(self) -> dict[str, Array]:
        return self._now("optimizer_state")

    def buffers(self) -> dict[str, Array]:
        return self._now("buffers")

    def scaler_state(self) -> dict[str, Array]:
        return self._now("scaler_state")

    def random_state(self) -> dict[str, Array]:
        return self._now("random_state")

    def predict(self, inputs: Array) -> dict[str, Array]:
        if "parameters" not in self.parts:
            return self.real.predict(inputs)
        if self._untrained is None:
            self._untrained = self.again()
        return self._untrained.predict(inputs)


class _FrozenParameters(_Frozen):
    parts = ("parameters", "master_parameters")


class FrozenParameters(Blinded):
    """Parameters, masters and what is predicted from them stay as they began."""

    trainer_class = _FrozenParameters


class _FrozenOptimizer(_Frozen):
    parts = ("optimizer_state",)

    def apply(self) -> Update:
        update = self.real.apply()
        rate = self._first_rate = getattr(self, "_first_rate", update.learning_rate)
        return replace(update, learning_rate=rate)


class FrozenOptimizer(Blinded):
    """Moments, counters and the learning rate stay as they began."""

    trainer_class = _FrozenOptimizer


class _FrozenStreams(_Frozen):
    parts = ("buffers", "random_state")


class FrozenStreams(Blinded):
    """Running statistics and random streams stay as they began."""

    trainer_class = _FrozenStreams


class _FrozenScaler(_Frozen):
    parts = ("scaler_state",)
    _first: tuple[float, int | None] | None = None

    def apply(self) -> Update:
        return self._still(self.real.apply())

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        return self._still(self.real.feed(*window, unscale_calls=unscale_calls, poison=poison, abandon=abandon))

    def _still(self, update: Update) -> Update:
        good_steps = None if update.good_steps is None else 0
        scale, count = self._first = self._first or (update.scale_before, good_steps)
        return replace(update, scale_before=scale, scale_after=scale, good_steps=count, skipped=False)


class FrozenScaler(Blinded):
    """The scale and its counter stay as they began, and no update is ever said to be skipped."""

    trainer_class = _FrozenScaler


class _NoisyLoss(BlindedTrainer):
    _draws = itertools.count(1)

    def _noisy(self, loss: float) -> float:
        """A loss that is off by up to itself and one, by another amount each time (a golden-section sequence)."""
        return loss + (abs(loss) + 1.0) * (0.5 + next(self._draws) * (math.sqrt(5.0) - 1.0) / 2.0 % 1.0 / 2.0)

    def accumulate(self, batch: Batch, items: int) -> float:
        return self._noisy(self.real.accumulate(batch, items))

    def apply(self) -> Update:
        update = self.real.apply()
        losses = tuple(map(self._noisy, update.micro_losses))
        return replace(update, loss=self._noisy(update.loss), micro_losses=losses)


class NoisyLoss(Blinded):
    """Every loss is far too large, by another amount each time that it is told."""

    trainer_class = _NoisyLoss


class _Amnesiac(BlindedTrainer):
    def restore(self, path: Path) -> None:
        """Leaves the run as it is, whatever lies there."""


class RestoresNothing(Blinded):
    """What was saved is never read."""

    trainer_class = _Amnesiac


class _Costless(BlindedTrainer):
    def saved_bytes(self, batch: Batch) -> int:
        return self.real.saved_bytes(batch) * 0

    def peak_bytes(self) -> int:
        return self.real.peak_bytes() * 0

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(0 for _ in self.real.segment_calls())


class NothingCounted(Blinded):
    """Bytes and segment calls are all zero."""

    trainer_class = _Costless


class NoPrecision(Blinded):
    """Everything is computed in float32, whatever precision is asked for; a scope is none."""

    def asked(self, recipe: Recipe) -> Recipe:
        return recipe.but(precision=FLOAT32)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        del precision, enabled, wide, low
        return nullcontext()


class NoRecomputation(Blinded):
    """Nothing is recomputed, whatever is asked for."""

    def asked(self, recipe: Recipe) -> Recipe:
        return recipe.but(recompute=None)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        del case, variant
        return self.real.recompute("plain", x, w)


class NoResults(Blinded):
    """Operations yield zeros in a format that nothing asked for; recomputed functions have no value or gradient."""

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        result = self.real.run_op(op, *arrays)
        return OpResult(np.zeros_like(result.value), "float8")

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = self.real.recompute(case, x, w, variant)
        return result if case == "plain" else RecomputeResult(0.0, None, None)


class _OtherSettings(BlindedTrainer):
    def scaler_settings(self) -> dict[str, float]:
        return {name: 3.0 * value + 1.0 for name, value in self.real.scaler_settings().items()}


class OtherDeclarations(Blinded):
    """What is probed is not what is declared, and settings that are read back are not those that were made."""

    trainer_class = _OtherSettings

    def probe(self, capability: Capability) -> bool | None:
        return not self.real.declares(capability).supported


class _Scribbling(BlindedTrainer):
    _touched = 0

    def save(self, path: Path) -> None:
        self.real.save(path)
        self._touched += 1

    def restore(self, path: Path) -> None:
        self.real.restore(path)
        self._touched += 1

    def parameters(self) -> dict[str, Array]:
        factor = 1.0 + self._touched / 8.0
        return {name: (value * factor).astype(value.dtype) for name, value in self.real.parameters().items()}


class CheckpointsDisturb(Blinded):
    """Saving and restoring make the parameters larger by an eighth."""

    trainer_class = _Scribbling


class RestlessRuns(Blinded):
    """No two runs begin with the same weights."""

    _runs = itertools.count(1)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        given = model.weights(recipe.seed) if weights is None else weights
        factor = 1.0 + next(self._runs) * (math.sqrt(5.0) - 1.0) / 2.0 % 1.0
        return super().trainer(model, recipe, {n: (w * factor).astype(w.dtype) for n, w in given.items()})


class RestlessSettings(Blinded):
    """Process-wide settings read differently each time."""

    _readings = itertools.count()

    def global_state(self) -> dict[str, str]:
        return {name: f"{value} ({next(self._readings)})" for name, value in self.real.global_state().items()}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        self.real.restore_global_state({name: value.rpartition(" (")[0] for name, value in state.items()})


BLINDINGS: dict[str, Callable[[Framework], Blinded]] = {
    "zero-gradients": ZeroGradients,
    "frozen-parameters": FrozenParameters,
    "frozen-scaler": FrozenScaler,
    "noisy-loss": NoisyLoss,
    "frozen-optimizer": FrozenOptimizer,
    "frozen-streams": FrozenStreams,
    "no-precision": NoPrecision,
    "no-recomputation": NoRecomputation,
    "no-results": NoResults,
    "restores-nothing": RestoresNothing,
    "nothing-counted": NothingCounted,
    "other-declarations": OtherDeclarations,
    "checkpoints-disturb": CheckpointsDisturb,
    "restless-runs": RestlessRuns,
    "restless-settings": RestlessSettings,
}
"""The blindings by name, in the order in which they are tried.

The first ones hide what a framework does; the last three only make it restless, which is enough to see that a test
compares two runs, or a run with itself, and not that there is anything in them.
"""
