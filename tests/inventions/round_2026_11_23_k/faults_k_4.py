"""Faults of averages, weight decay and recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import AdamW
from frameworks.reference.forward import Moment
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/lucidrains/byol-pytorch/issues/73", clause="master.average-is-evaluated", kind="real")
class AverageKeepsFirstBuffers(ReferenceTrainer):
    """The averaged copy of the model normalises by the running statistics that it was made with."""

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        current = self.statistics
        self.statistics = {name: value.astype(float) for name, value in self.model.buffers().items()}
        try:
            return super().predict_averaged(inputs)
        finally:
            self.statistics = current


@fault("", clause="master.average-keeps-precision", kind="invented")
class AverageRoundedByUse(ReferenceTrainer):
    """Evaluation with the average rounds the average itself to the model's format, which it keeps."""

    def averaged(self, name: str) -> Array:
        self.averages[name] = super().averaged(name)
        return self.averages[name]


@fault("", clause="master.average-follows-updates", kind="invented")
class AverageOfFirstOptimizer(ReferenceTrainer):
    """Of two optimizers only the first one's parameters go into the average."""

    def move_average(self) -> None:
        former = dict(self.averages)
        super().move_average()
        self.averages |= {name: value for name, value in former.items() if self.optimizer_of(name)}


@fault("", clause="master.decay-survives", kind="invented")
class DecayLagsBehind(ReferenceTrainer):
    """Weight decay uses the learning rate of the update before, so that it is wrong where the schedule changes it."""

    _former: float | None = None

    def apply_update(self, gradients: dict[str, Array], rate: float) -> None:
        recipe, optimizer = self.recipe, self.recipe.optimizer
        if isinstance(optimizer, AdamW) and self._former not in (None, rate) and rate:
            decay = optimizer.weight_decay * self._former / rate
            self.recipe = recipe.but(optimizer=replace(optimizer, weight_decay=decay))
        super().apply_update(gradients, rate)
        self.recipe, self._former = recipe, rate


@fault("https://github.com/NVIDIA/Megatron-LM/pull/3562", clause="recompute.same-loss", kind="real")
class UnevenSegmentsRaise(ReferenceTrainer):
    """Recomputation reaches beyond the last layer where the segments do not divide the layers."""

    def run(self, parameters: Mapping[str, Tensor], batch: Batch, inputs: Any = None) -> dict[str, Tensor]:
        if self.recipe.recompute is not None and (len(self.model.layers) - 1) % self.recipe.recompute.segments:
            raise IndexError("list index out of range")
        return super().run(parameters, batch, inputs)


@fault("", clause="recompute.with-accumulation", kind="invented")
class ReplaysFirstMicroBatch(ReferenceTrainer):
    """The random state for recomputation is noted once a window: later micro-batches replay the first one's masks."""

    _begun = 0
    _since = 0

    def accumulate(self, batch: Batch, items: int) -> float:
        if not self.window.micro_batches:
            self._begun = self.draws
        self._since = self.draws - self._begun
        return super().accumulate(batch, items)

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        return super().replay_random(draws - self._since)


@fault("", clause="recompute.nested", kind="invented")
class InnerReplaysOuter(ReferenceTrainer):
    """In nested recomputation the inner parts replay the random state from the beginning of the outer segment."""

    _outer = 0
    _starts: dict[int, int] | None = None

    def _recomputed(
        self, layers: Any, parameters: Mapping[str, Tensor], x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        if index is not None:
            self._outer = self.draws
        else:
            self._starts = {**(self._starts or {}), self.draws: self._outer}
        return super()._recomputed(layers, parameters, x, depth, index)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        self._outer = (self._starts or {}).get(moment.draws, moment.draws)
        return super().recompute_segment(Moment(self._outer, moment.scope))
