"""The training loop around an update: frequency of a schedule, and the hook before an optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear, scalar
from fixtures.recipe import BFLOAT16, SGD, DynamicScaling, FormatName, Precision, Recipe
from frameworks.contract import LoadedRun
from frameworks.reference.training.trainer import ReferenceTrainer


class ReferenceLoop:
    """One method a decision.

    Args:
        run: makes a run of a recipe.
    """

    def __init__(self, run: Callable[[Model, Recipe], ReferenceTrainer]) -> None:
        self.run = run

    def scheduled(self, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
        """The steps of the schedule after each update."""
        trainer = self.run(exact_linear(), Recipe(SGD(2.0**-8), accumulation=accumulation))
        counts: list[int] = []
        steps = updates = micro_batches = 0
        for length in epochs:
            for place in range(1, length + 1):
                micro_batches += 1
                trainer.accumulate(exact_batch(2), 2 * accumulation)
                if place % accumulation and place < length:
                    continue
                trainer.apply()
                updates += 1
                steps += self.is_due(frequency, updates, micro_batches, place)
                counts.append(steps)
        return tuple(counts)

    def is_due(self, frequency: int, updates: int, micro_batches: int, place: int) -> bool:
        """Whether the schedule steps after the run's update of this number.

        Args:
            updates: of the run.
            micro_batches: of the run.
            place: micro-batches of the epoch.
        """
        return updates % frequency == 0

    def clipped(self, gradient: Array, limit: float, scale: float) -> Array:
        """The gradient that a step applies after clipping."""
        name = "0.output.bias"
        trainer = self.run(exact_linear(), Recipe(SGD(), scaling=DynamicScaling(initial=scale), clip=limit))
        return trainer.clip({name: trainer.unscale(name, np.asarray(gradient) * scale)})[name]

    def loaded(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        """What training made of a checkpoint in this format, whose weights are ones."""
        trainer = self.run(scalar(1.0), Recipe(SGD(rate), self.precision(saved)))
        before = trainer.master_parameters()
        for _ in range(updates):
            trainer.apply_gradients({name: np.ones_like(value) for name, value in trainer.parameters().items()})
        moved = [value != before[name] for name, value in trainer.master_parameters().items()]
        loaded = next(iter(before.values())).dtype.name
        return LoadedRun(loaded, sum(int(each.sum()) for each in moved), sum(each.size for each in moved), warned=False)

    def precision(self, saved: FormatName) -> Precision:
        """The precision in which a checkpoint in this format is trained under a request for mixed bfloat16."""
        return BFLOAT16

    def hooked(self, gradient: Array, scale: float) -> Array:
        """The gradient that the hook finds."""
        trainer = self.run(exact_linear(), Recipe(SGD(), scaling=DynamicScaling(initial=scale)))
        unscaled = trainer.unscale("0.output.bias", np.asarray(gradient) * scale)
        return self.hook_gradient(unscaled, scale)

    def hook_gradient(self, unscaled: Array, scale: float) -> Array:
        """The gradient that the hook finds, of an unscaled one."""
        return unscaled
