"""Faults of recomputation and evaluation, and of what one run does to another."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.contract import Update
from frameworks.reference import scope
from frameworks.reference.forward import Layers, Moment
from frameworks.reference.network import Pass
from frameworks.reference.tensor import Tensor, tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

Arrays = dict[str, Array]


@fault("https://github.com/fartashf/vsepp/issues/4", clause="accumulation.evaluation-changes-nothing", kind="real")
class WindowEndsInEvaluationMode(ReferenceTrainer):
    """An evaluation inside a window leaves the layers in evaluation mode until the next window begins."""

    left = False

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        self.left = bool(self.window.micro_batches)
        return outputs

    def accumulate(self, batch: Batch, items: int) -> float:
        self.left = self.left and bool(self.window.micro_batches)
        return super().accumulate(batch, items)

    def _pass(self, parameters: Any, training: bool) -> Pass:
        return super()._pass(parameters, training and not self.left)


@fault("https://github.com/victorchall/EveryDream2trainer/pull/246", clause="recompute.frees-activations", kind="real")
class NoRecomputationAfterEvaluation(ReferenceTrainer):
    """Recomputation heeds a mode that an evaluation switches off and the end of the next window switches on."""

    evaluated = False

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        self.evaluated = True
        return outputs

    def apply(self) -> Update:
        self.evaluated = False
        return super().apply()

    def _segment(self, index: int, layers: Layers, parameters: Any, x: Tensor) -> Tensor:
        if not self.evaluated:
            return super()._segment(index, layers, parameters, x)
        self.calls[index] += 1
        return self._pass(parameters, True).layers(layers, x)


@fault("", clause="recompute.replays-dropout", kind="invented")
class StreamReplayedOnce(ReferenceTrainer):
    """A segment's random state is given up by its first recomputation; one for a second loss draws other masks."""

    replayed: ClassVar[list[Moment]] = []

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if any(moment is known for known in self.replayed):
            return super().recompute_segment(Moment(self.draws, moment.scope))
        self.replayed[:] = [*self.replayed[-31:], moment]
        return super().recompute_segment(moment)


@fault("", clause="accumulation.evaluation-changes-nothing", kind="invented")
class AverageEvaluationMovesStatistics(ReferenceTrainer):
    """Evaluation with the average first takes its inputs into batch norm's running statistics."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.statistics and self.averages:
            averages = {name: Tensor(self.averaged(name), self.formats[name], owned=False) for name in self.averages}
            draws, body = self.draws, tuple(part for layers in self.segments for part in layers)
            with scope.opened(self.scope), np.errstate(all="ignore"):
                self._pass(averages, True).layers(body, tensor(inputs, owned=False))
            self.draws = draws
        return super().predict_averaged(inputs)


@fault("", clause="accumulation.fresh-dropout", kind="invented")
class NewRunSeedsAll(ReferenceTrainer):
    """Making a run seeds the random stream of the process: the other runs begin theirs again."""

    made: ClassVar[list[int]] = [0]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.made[0] += 1
        self.seeded = self.made[0]

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        if self.seeded != self.made[0]:
            self.draws, self.seeded = 0, self.made[0]
        return super().draw_mask(shape, rate)
