"""Faults of checkpoints, of recomputation and of several runs in one process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import AdamW, DynamicScaling
from frameworks.reference.arithmetic import Operations
from frameworks.reference.forward import Moment
from frameworks.reference.network import Pass
from frameworks.reference.scaler import LossScale
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

Arrays = dict[str, Array]


@fault("https://github.com/pytorch/pytorch/pull/75214", clause="master.counts-every-update", kind="real")
class LoadedCountsAreRounded(ReferenceTrainer):
    """A load rounds the counts that Adam's bias correction reads to the format of the model's parameters."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.counts = {
            name: int(self.rounding.round(np.array(float(count)), self.formats[name]))
            for name, count in self.counts.items()
        }


@fault("https://github.com/pytorch/pytorch/issues/196083", clause="resume.bit-identical", kind="real")
class LoadsShareMoments(ReferenceTrainer):
    """Runs that load the same state within a process hold the same moments, and an update of one moves them for all."""

    loaded: ClassVar[dict[str, dict[str, Arrays]]] = {}

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        digest = hashlib.sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays)))
        self.slots = self.loaded.setdefault(digest.hexdigest(), self.slots)


@fault("https://github.com/NVIDIA/Megatron-LM/pull/7468", clause="resume.bit-identical", kind="real")
class DecayIsStaleAfterLoad(ReferenceTrainer):
    """The first update after a load decays the weights by the base learning rate instead of the schedule's."""

    stale = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.stale = True

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        optimizer, recipe = self.recipe.optimizer, self.recipe
        if self.stale and rate and isinstance(optimizer, AdamW):
            decay = optimizer.weight_decay * optimizer.learning_rate / rate
            self.recipe = recipe.but(optimizer=replace(optimizer, weight_decay=decay))
        self.stale = False
        super().apply_update(gradients, rate)
        self.recipe = recipe


@fault("https://github.com/pytorch/pytorch/issues/29697", clause="resume.bit-identical", kind="real")
class RateWaitsForBoundary(ReferenceTrainer):
    """After a load between two boundaries of the schedule the rate is the base one until the next boundary comes."""

    loaded_at: int | None = None

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.loaded_at = self.schedule

    def learning_rate(self) -> float:
        schedule, start = self.recipe.schedule, self.loaded_at
        if schedule is None or start is None or any(start <= b <= self.schedule for b in schedule.boundaries):
            return super().learning_rate()
        return self.recipe.optimizer.learning_rate


@fault("", clause="resume.mid-window", kind="invented")
class LoadedWindowForgetsLosses(ReferenceTrainer):
    """A window that a load brings back reports the loss of the micro-batches after the load alone."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.losses = []


@fault("", clause="resume.bit-identical", kind="invented")
class LoadCleansStatistics(ReferenceTrainer):
    """A load puts zeros in the place of running statistics that are infinite or not a number."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.statistics = {name: np.where(np.isfinite(v), v, 0.0) for name, v in self.statistics.items()}


@fault("", clause="recompute.replays-dropout", kind="invented")
class SecondLossDrawsAnew(ReferenceTrainer):
    """Of two losses that are differentiated one after the other, the second replays segments with masks of its own."""

    replayed: tuple[Moment, ...] = ()

    def accumulate(self, batch: Batch, items: int) -> float:
        self.replayed = ()
        return super().accumulate(batch, items)

    def recompute_segment(self, moment: Moment) -> Any:
        again = any(moment is other for other in self.replayed)
        self.replayed += (moment,)
        return super().recompute_segment(replace(moment, draws=self.draws) if again else moment)


@fault("https://github.com/openai/guided-diffusion/pull/144", clause="recompute.same-gradients", kind="real")
class SegmentsAreReplayedOnce(ReferenceTrainer):
    """A recomputed segment gives up its input in the first backward pass; that of a second loss raises."""

    freed: tuple[Moment, ...] = ()

    def accumulate(self, batch: Batch, items: int) -> float:
        self.freed = ()
        return super().accumulate(batch, items)

    def recompute_segment(self, moment: Moment) -> Any:
        if any(moment is other for other in self.freed):
            raise RuntimeError("the input of this segment has already been freed")
        self.freed += (moment,)
        return super().recompute_segment(moment)


@fault("", clause="recompute.evaluation-is-plain", kind="invented")
class EvaluationStaysInReplay(ReferenceTrainer):
    """After an evaluation, recomputed segments run in evaluation mode until the next window has ended."""

    evaluated = False

    def evaluate(self, parameters: dict[str, Tensor], inputs: Array) -> dict[str, Tensor]:
        self.evaluated = True
        return super().evaluate(parameters, inputs)

    def empty_accumulator(self) -> None:
        super().empty_accumulator()
        self.evaluated = False

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return super()._pass(parameters, training and not (self.evaluated and self._replaying))


@primitive
def _gathered(ids: Array, table: Array) -> Array:
    return table[ids]


def _last_wins(_: Array, ids: Array, table: Array) -> Any:
    def pullback(gradient: Array) -> Array:
        total = np.zeros_like(table)
        total[ids] = gradient
        return total

    return pullback


defvjp(_gathered, None, _last_wins)


class _RowsOnce(Operations):
    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        return self.apply("embedding", lambda i, t, _: _gathered(i, t), ids, table)


@fault("", clause="recompute.same-gradients", kind="invented")
class ReplayedRowsCountOnce(ReferenceTrainer):
    """In a recomputed segment a row of a table gets the gradient of its last use in the batch alone."""

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        run = super()._pass(parameters, training)
        return replace(run, ops=_RowsOnce(self.rounding)) if self._replaying else run


@fault("", clause="autocast.settings-restored", kind="invented")
class RunsShareOneStream(ReferenceTrainer):
    """All runs of a process draw dropout from one stream, which making a run sets back to its start."""

    place: ClassVar[list[int]] = [0]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.place[0] = 0

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        if self._replaying or self.ops.tape is not None:
            return super().draw_mask(shape, rate)
        self.draws = self.place[0]
        mask = super().draw_mask(shape, rate)
        self.place[0] = self.draws
        return mask

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.place[0] = self.draws


@fault("", clause="scaling.defaults-are-declared", kind="invented")
class ScaleIsHandedOn(ReferenceTrainer):
    """A run that leaves the initial scale to the framework begins with the one that the run before it backed off to."""

    last: ClassVar[list[float]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scaling = self.recipe.scaling
        if self.scaler is not None and self.last and isinstance(scaling, DynamicScaling) and scaling.initial is None:
            self.scaler = self.scaler.at(self.last[-1], 0)

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        moved = super().next_scale(scaler, finite)
        if moved.scale < scaler.scale:
            self.last[:] = [moved.scale]
        return moved


@fault("https://github.com/CrispStrobe/CrispASR/pull/244", clause="autocast.cast-is-fresh", kind="real")
class EvaluationWeightsOutliveTheRun(ReferenceTrainer):
    """Weights for evaluation are kept for the process by name and shape, so a second run evaluates the first's."""

    kept: ClassVar[dict[tuple[Any, ...], Tensor]] = {}

    def _tensors(self) -> dict[str, Tensor]:
        made = super()._tensors()
        return {name: self.kept.setdefault((name, t.shape, t.format), t) for name, t in made.items()}

    def _forget(self) -> None:
        for name, value in self.values.items():
            self.kept.pop((name, value.shape, self.formats[name]), None)

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self._forget()

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._forget()
