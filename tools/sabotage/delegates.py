"""A framework and trainers that delegate every call; base classes of sabotages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.contract import Framework, State, Trainer, Update

PARTS = {
    "parameter": "parameters",
    "master": "master_parameters",
    "optimizer": "optimizer_state",
    "buffer": "buffers",
    "scaler": "scaler_state",
    "accumulator": "accumulator",
    "random": "random_state",
}
"""The method that reads a part of the state, by the part's prefix."""


class SabotagedTrainer:
    """A trainer that delegates to `real` what it does not override; `update` and `state` use the other methods.

    Args:
        real: the run.
        again: makes another run from the same start.
    """

    reads: Collection[str] = ()
    """Methods of the contract that read arrays, and whose results are `altered`."""

    def __init__(self, real: Trainer, again: Callable[[], Trainer]) -> None:
        self.real = real
        self.again = again

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        return (lambda *given: self.altered(name, method(*given))) if name in self.reads else method

    def altered(self, read: str, arrays: State) -> dict[str, Array]:
        """What a method of `reads` returns instead."""
        raise NotImplementedError

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


class Sabotaged:
    """A framework that delegates to `real` what it does not override, with trainers of `trainer_class`."""

    def __init__(self, real: Framework, trainer_class: type[SabotagedTrainer] = SabotagedTrainer) -> None:
        self.real = real
        self.trainer_class = trainer_class

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def asked(self, recipe: Recipe) -> Recipe:
        """The recipe to train instead."""
        return recipe

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        def made() -> Trainer:
            return self.real.trainer(model, self.asked(recipe), weights)

        return cast(Trainer, self.trainer_class(made(), made))
