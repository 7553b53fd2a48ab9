"""Sabotages that suppress what a framework does: state stays, results are zero, requests are ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import FLOAT32, Precision, Recipe
from frameworks.contract import Gradients, OpResult, RecomputeCase, RecomputeResult, State, Trainer, Update
from tools.sabotage.delegates import Sabotaged, SabotagedTrainer


class ZeroGradients(SabotagedTrainer):
    """Gradients are zeros, whether read or given; those of a window's own backward pass do not cross the contract."""

    reads = ("gradients", "accumulator")

    def altered(self, read: str, arrays: State) -> dict[str, Array]:
        return {name: np.zeros_like(value) for name, value in arrays.items()}

    def apply_gradients(self, *window: Gradients, inject: Gradients | None = None, **asked: Any) -> Update:
        blank = [{n: None if g is None else np.zeros_like(g) for n, g in part.items()} for part in window]
        added = None if inject is None else {n: None if g is None else np.zeros_like(g) for n, g in inject.items()}
        return self._without_norm(self.real.apply_gradients(*blank, inject=added, **asked))

    def apply(self) -> Update:
        return self._without_norm(self.real.apply())

    def _without_norm(self, update: Update) -> Update:
        return replace(update, gradient_norm=None if update.gradient_norm is None else 0.0)


class _Frozen(SabotagedTrainer):
    """What is read keeps its initial values."""

    def __init__(self, real: Trainer, again: Callable[[], Trainer]) -> None:
        super().__init__(real, again)
        self._start = {
            read: {name: np.array(value) for name, value in getattr(real, read)().items()} for read in self.reads
        }

    def altered(self, read: str, arrays: State) -> dict[str, Array]:
        return dict(self._start[read])


class FrozenParameters(_Frozen):
    """Parameters, masters and predictions keep their initial values."""

    reads = ("parameters", "master_parameters")

    @cached_property
    def _untrained(self) -> Trainer:
        return self.again()

    def predict(self, inputs: Array) -> dict[str, Array]:
        return self._untrained.predict(inputs)


class FrozenOptimizer(_Frozen):
    """Moments, counters and the learning rate keep their initial values."""

    reads = ("optimizer_state",)

    def apply(self) -> Update:
        update = self.real.apply()
        rate = self._first_rate = getattr(self, "_first_rate", update.learning_rate)
        return replace(update, learning_rate=rate)


class FrozenStreams(_Frozen):
    """Running statistics and random streams keep their initial values."""

    reads = ("buffers", "random_state")


class FrozenScaler(_Frozen):
    """The scale and its counter keep their initial values, and no update is reported as skipped."""

    reads = ("scaler_state",)
    _first: tuple[float, int | None] | None = None

    def apply(self) -> Update:
        return self._still(self.real.apply())

    def apply_gradients(self, *window: Gradients, **asked: Any) -> Update:
        return self._still(self.real.apply_gradients(*window, **asked))

    def _still(self, update: Update) -> Update:
        good_steps = None if update.good_steps is None else 0
        scale, count = self._first = self._first or (update.scale_before, good_steps)
        return replace(update, scale_before=scale, scale_after=scale, good_steps=count, skipped=False)


class ConstantLoss(SabotagedTrainer):
    """Every loss is 1."""

    def accumulate(self, batch: Batch, items: int) -> float:
        return self.real.accumulate(batch, items) * 0.0 + 1.0

    def apply(self) -> Update:
        update = self.real.apply()
        return replace(update, loss=1.0, micro_losses=tuple(1.0 for _ in update.micro_losses))


class RestoresNothing(SabotagedTrainer):
    """Saved files are never read."""

    def restore(self, path: Path) -> None:
        """Restores nothing."""


class NothingCounted(SabotagedTrainer):
    """Bytes and segment calls are all zero."""

    def saved_bytes(self, batch: Batch) -> int:
        return self.real.saved_bytes(batch) * 0

    def peak_bytes(self) -> int:
        return self.real.peak_bytes() * 0

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(0 for _ in self.real.segment_calls())


class NoPrecision(Sabotaged):
    """Everything is computed in float32, whatever precision is requested; scopes have no effect."""

    def asked(self, recipe: Recipe) -> Recipe:
        return recipe.replace(precision=FLOAT32)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        del precision, enabled, wide, low
        return nullcontext()


class NoRecomputation(Sabotaged):
    """Nothing is recomputed, whatever is requested."""

    def asked(self, recipe: Recipe) -> Recipe:
        return recipe.replace(recompute=None)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        del case, variant
        return self.real.recompute("plain", x, w)


class NoResults(Sabotaged):
    """Operations return zeros in an unrequested format; recomputed functions return no value or gradient."""

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        result = self.real.run_op(op, *arrays)
        return OpResult(np.zeros_like(result.value), "float8")

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        return self.real.recompute(case, x, w, variant) if case == "plain" else RecomputeResult(0.0, None, None)
