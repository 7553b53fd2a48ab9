"""Faults of the window, of averages and optimizers, of the scaler, and of what a save brings back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import SGD, Adam, AdamW, Level, Precision
from frameworks.contract import Update
from frameworks.reference import scope
from frameworks.reference.decisions import Arrays
from frameworks.reference.optimizers import Arithmetic
from frameworks.reference.scaler import LossScale
from frameworks.reference.tape import Pullback
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/allenai/allennlp/pull/4706", clause="laws.programs", kind="real")
class LossOfLastMicroBatch(ReferenceTrainer):
    """The loss that an update reports is that of its last micro-batch, divided by the number of micro-batches."""

    def apply(self) -> Update:
        update = super().apply()
        losses = update.micro_losses
        return replace(update, loss=losses[-1] / len(losses)) if losses else update


@fault(
    "https://github.com/google-research/vision_transformer/issues/286",
    clause="accumulation.fresh-dropout",
    kind="real",
)
class OneKeyForTheWindow(ReferenceTrainer):
    """The random key of dropout is split once an update, so that all micro-batches of a window draw the same masks."""

    _opened = 0

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        if self.window.micro_batches:
            self.draws = self._opened
        else:
            self._opened = self.draws
        return super().passed(batch, items)


@fault("https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186", clause="master.average-is-evaluated", kind="real")
class AverageStaysInTheModel(ReferenceTrainer):
    """Evaluation with the average copies it into the model and does not put the weights back: until the next update
    the model trains and predicts with the average.
    """

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        for name in self.averages:
            self.values[name] = self.averaged(name)
        return outputs


@fault("https://github.com/lightly-ai/lightly-train/pull/892", clause="resume.bit-identical", kind="real")
class AverageStartsAnewAfterLoad(ReferenceTrainer):
    """The average's own count of updates is not in the save, so that the first update after a load copies the weights
    over the average that was loaded.
    """

    _first = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._first = True

    def move_average(self) -> None:
        super().move_average()
        if self._first and self.recipe.average is not None:
            self.averages = dict(self.masters)
        self._first = False


@fault("https://github.com/pytorch/pytorch/issues/43706", clause="master.moments-keep-precision", kind="real")
class MomentsTakeTheModelsFormat(ReferenceTrainer):
    """A load brings the moments to the format of the model's weights: at level O2 float32 moments come back with the
    digits of float16 or bfloat16.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        for moments in self.slots.values():
            for name in list(moments):
                if self.formats[name] != self.master_formats[name]:
                    moments[name] = self.rounding.round(moments[name], self.formats[name])


@fault("https://github.com/THUDM/slime/pull/1547", clause="resume.load-has-no-side-effects", kind="real")
class ScheduleIsAdvancedByTheLoad(ReferenceTrainer):
    """After a load the schedule is advanced by the updates of the saved run once more, so that it stands at twice its
    place.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.recipe.schedule is not None:
            self.schedule *= 2


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2010",
    clause="autocast.float32-parity",
    kind="real",
)
class DecayAfterTheUpdate(ReferenceTrainer):
    """AdamW decays the weights after its update instead of before, so that the update's own step is decayed too."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        recipe, optimizer = self.recipe, self.recipe.optimizer
        if not isinstance(optimizer, AdamW):
            super().apply_update(gradients, rate)
            return
        self.recipe = recipe.but(optimizer=replace(optimizer, weight_decay=0.0))
        try:
            super().apply_update(gradients, rate)
        finally:
            self.recipe = recipe
        for name in gradients:
            r = Arithmetic(self.rounding, self.master_formats[name])
            self.masters[name] = r(self.masters[name] * r.number(1.0 - rate * optimizer.weight_decay))


@fault("https://github.com/huggingface/accelerate/issues/439", clause="scaling.two-optimizers", kind="real")
class ScalerMovesOnceAnOptimizer(ReferenceTrainer):
    """Every optimizer's step moves the shared scaler: with two of them an overflow backs the scale off twice, and the
    growth counter counts each update double.
    """

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        for _ in range(self.recipe.optimizers):
            scaler = super().next_scale(scaler, finite)
        return scaler


@fault("https://github.com/facebookresearch/fairchem/pull/617", clause="scaling.reports-true-loss", kind="real")
class LossDividedByTheNextScale(ReferenceTrainer):
    """The reported loss is the scaled one divided by the scale after the update, which is wrong by the growth or the
    backoff factor in every update that moves the scale.
    """

    def apply(self) -> Update:
        update = super().apply()
        share = update.scale_before / update.scale_after
        losses = tuple(loss * share for loss in update.micro_losses)
        return replace(update, loss=update.loss * share, micro_losses=losses)


@fault("https://github.com/NVIDIA/apex/pull/132", clause="autocast.cast-is-fresh", kind="real")
class CastsOutliveALoad(ReferenceTrainer):
    """At level O1 evaluation keeps its casts of the weights until the next training pass, and a load does not drop
    them: the prediction right after a load is that of the weights before it.
    """

    _casts: Arrays | None = None

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self._casts = None
        return super().passed(batch, items)

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self._casts = None
        super().apply_update(gradients, rate)

    def predict(self, inputs: Array) -> Arrays:
        if self.recipe.precision.level != "O1":
            return super().predict(inputs)
        if self._casts is None:
            self._casts = dict(self.values)
        weights = {name: Tensor(value, self.formats[name], owned=False) for name, value in self._casts.items()}
        return self._evaluated(weights, inputs)


@fault("https://github.com/pytorch/ao/issues/959", clause="offload.same-bits", kind="real")
class OffloadedOptimizerKeepsItsRate(ReferenceTrainer):
    """An optimizer whose state is offloaded goes on with the rate that it was made with; the schedule moves the rate
    that is reported, and not the one of the update.
    """

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        offload = self.recipe.offload
        away = offload is not None and "optimizer" in offload.what
        super().apply_update(gradients, self.recipe.optimizer.learning_rate if away else rate)


@fault("", clause="scaling.backs-off-on-overflow", kind="invented")
class CounterSurvivesOverflowFoundByHand(ReferenceTrainer):
    """An overflow that is found when the caller unscales by hand backs the scale off and skips the update, and leaves
    the growth counter where it was.
    """

    _by_hand = False

    def unscale_by_hand(self, calls: int) -> None:
        self._by_hand = calls > 0
        super().unscale_by_hand(calls)

    def empty_accumulator(self) -> None:
        super().empty_accumulator()
        self._by_hand = False

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        moved = super().next_scale(scaler, finite)
        return replace(moved, good_steps=scaler.good_steps) if self._by_hand and not finite else moved


@fault("", clause="scaling.stays-finite", kind="invented")
class InverseScaleInHalf(ReferenceTrainer):
    """Under float16 gradients are multiplied by the scale's inverse in float16, which is inexact for most scales and
    zero beyond 2^25: the model then stops learning while every update counts as applied.
    """

    def unscale(self, name: str, gradient: Array) -> Array:
        precision = self.recipe.precision
        if self.scaler is None or precision.level == "O0" or precision.format != "float16":
            return super().unscale(name, gradient)
        inverse = float(np.float16(1.0 / self.scaler.scale))
        return self.rounding.round(gradient * inverse, self.accumulator_format(name))


@fault("", clause="resume.mid-window", kind="invented")
class LossesOfAnOpenWindowAreLost(ReferenceTrainer):
    """A save inside a window leaves out the losses so far, so that the update after the load reports the loss of the
    later micro-batches alone.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.losses = []


@fault("", clause="resume.unclaimed-is-refused", kind="invented")
class SaveOfAnotherOptimizerIsTaken(ReferenceTrainer):
    """Which optimizer a save is of is not looked at: a run of plain gradient descent takes one of Adam and drops its
    moments in silence, and AdamW takes those of Adam.
    """

    def _identity(self) -> str:
        optimizer = self.recipe.optimizer
        if isinstance(optimizer, Adam) and optimizer.state_bits == 8:
            return super()._identity()
        kept, self.recipe = self.recipe, self.recipe.but(optimizer=SGD())
        try:
            return super()._identity()
        finally:
            self.recipe = kept


@fault("", clause="recompute.with-accumulation", kind="invented")
class ReplaysTheFirstMicroBatchsMasks(ReferenceTrainer):
    """The place in the random stream that recomputation goes back to is kept once a window: from the second
    micro-batch on, the recomputed pass draws the masks of the first.
    """

    _opened = 0
    _began = 0

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self._began = self.draws
        if not self.window.micro_batches:
            self._opened = self.draws
        return super().passed(batch, items)

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        moved = draws - self._began + self._opened if draws >= self._began else draws
        return super().replay_random(moved)


@fault("", clause="recompute.replays-autocast", kind="invented")
class ReplaysAtLevelOne(ReferenceTrainer):
    """A recomputed segment of a model at level O2 or O3 runs under the scope of level O1, so that what follows its
    operands stays in float32 where the first pass had it in the low format.
    """

    @contextmanager
    def replay_precision(self, former: scope.Scope) -> Iterator[None]:
        level: Level = "O0" if former.precision.level == "O0" else "O1"
        with scope.opened(scope.Scope(Precision(level, former.precision.format), former.wide, former.low)):
            yield


@fault("", clause="composition.pairs", kind="invented")
class SecondLossSkipsTheSegments(ReferenceTrainer):
    """Where recomputation meets losses with a backward pass each, the segments are let go after the first one: the
    second loss gives gradients to its head alone.
    """

    def _pulled(self, pullbacks: list[Pullback]) -> Arrays:
        if self.recipe.recompute is None or len(pullbacks) < 2:
            return super()._pulled(pullbacks)
        first, later = super()._pulled(pullbacks[:1]), super()._pulled(pullbacks[1:])
        last = f"{len(self.model.layers) - 1}."
        heads = {name: value for name, value in later.items() if name.startswith(last)}
        return {name: value + heads[name] if name in heads else value for name, value in first.items()}
