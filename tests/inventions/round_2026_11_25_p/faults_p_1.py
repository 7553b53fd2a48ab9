"""Faults of the steps of training: accumulation, autocast, composition, master weights, recomputation, scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import ClassVar

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.model import Batch, dense_weights
from fixtures.recipe import AdamW, Precision
from frameworks.contract import LayerTrace, Update
from frameworks.reference import ReferenceFramework, products, scope
from frameworks.reference.arithmetic import Operations, softmax
from frameworks.reference.decisions import Arrays
from frameworks.reference.network import Pass
from frameworks.reference.scaler import LossScale
from frameworks.reference.tensor import Tensor, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

# accumulation


@fault("https://github.com/allenai/allennlp/pull/4706", clause="scaling.reports-true-loss", kind="real")
class LossOfTheLastMicroBatch(ReferenceTrainer):
    """The loss that is reported of a window is that of its last micro-batch, divided by the number of micro-batches."""

    def apply(self) -> Update:
        losses = self.window.losses
        update = super().apply()
        if len(losses) < 2:
            return update
        total, items = losses[-1]
        return replace(update, loss=self.reported_loss(total, items) / len(losses))


@fault("", clause="accumulation.evaluation-changes-nothing", kind="invented")
class PredictionForgetsLosses(ReferenceTrainer):
    """A prediction inside a window clears the losses that were noted, so that the update reports only later ones."""

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        self.window.losses.clear()
        return outputs


@fault("", clause="accumulation.keeps-precision", kind="invented")
class EveryAccumulatorIsFloat32(ReferenceTrainer):
    """Accumulators are float32 for all parameters, so that gradients of float64 heads lose half of their digits."""

    def accumulator_format(self, name: str) -> str:
        return "float32"


@fault("", clause="accumulation.groups-change-nothing", kind="invented")
class GroupsAreClippedApart(ReferenceTrainer):
    """With two parameter groups each group is clipped by its own norm and not by the norm of all gradients."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.groups == 1:
            return super().clip(gradients)
        places = {name: place % self.recipe.groups for place, name in enumerate(self.masters)}
        clipped: Arrays = {}
        for group in range(self.recipe.groups):
            own = {name: gradient for name, gradient in gradients.items() if places[name] == group}
            clipped |= super().clip(own) if own else {}
        return {name: clipped[name] for name in gradients}


# autocast


class _ReusedScope(AbstractContextManager[None]):
    """A scope that can be opened any number of times, and remembers one former scope."""

    def __init__(self, opened: scope.Scope) -> None:
        self.opened = opened
        self.former = scope.Scope()

    def __enter__(self) -> None:
        self.former = scope.current()
        scope.enter(self.opened)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope.enter(self.former)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/2957", clause="autocast.scope-restored", kind="real")
class ScopesOfOneSettingAreOneObject(ReferenceFramework):
    """Scopes of the same settings are one object with one remembered state, so one inside the other stays open."""

    scopes: ClassVar[dict[scope.Scope, _ReusedScope]] = {}

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        asked = scope.Scope(precision, frozenset(wide), frozenset(low)) if enabled else scope.Scope()
        return self.scopes.setdefault(asked, _ReusedScope(asked))


@fault("", clause="autocast.matmul-is-low", kind="invented")
class AttentionScoresAreLow(Operations):
    """In low precision attention rounds the products of queries and keys to the low format before it scales them."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        computing, yielding = self.formats("attention", query.format, key.format, value.format)
        if computing in ("float32", "float64"):
            return super().attention(query, key, value)
        q, k, v = (self.cast(x, computing) for x in (query, key, value))
        raw = products.product(q.value, anp.swapaxes(k.value, -1, -2), self.rounding, computing)
        scores = rounded(raw / np.sqrt(q.shape[-1]), self.rounding, computing)
        shares = softmax(scores, lambda x, n=1: rounded(x, self.rounding, "float32", n))
        weights = Tensor(rounded(shares, self.rounding, computing), computing)
        mixed = products.product(weights.value, v.value, self.rounding, computing)
        if self.tape:
            self.tape.keep(q, k, v, weights)
        return self.cast(Tensor(rounded(mixed, self.rounding, computing), computing), yielding)


@fault("", clause="autocast.dropout-scales-what-it-keeps", kind="invented")
class MaskOfRandomBytes(ReferenceTrainer):
    """Dropout compares random bytes with its rate in 256ths, cut off: a rate of 1/10 drops 25 of 256 values."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        return super().draw_mask(shape, int(rate * 256) / 256)


# composition


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class TraceIsRolledBack(ReferenceTrainer):
    """A trace puts random stream and running statistics back, though its pass is said to move them as any other."""

    def trace(self, batch: Batch) -> LayerTrace:
        draws, statistics = self.draws, dict(self.statistics)
        try:
            return super().trace(batch)
        finally:
            self.draws, self.statistics = draws, statistics


# master weights


@fault("https://github.com/ai2cm/ace/pull/819", clause="master.average-follows-updates", kind="real")
class AverageBeginsAnewAfterALoad(ReferenceTrainer):
    """The average's own count of updates is zero after a load, so the next update copies the weights into it."""

    taken = 0

    def move_average(self) -> None:
        steps = self.steps
        self.taken += 1
        self.steps = self.taken
        try:
            super().move_average()
        finally:
            self.steps = steps

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.taken = 0


@fault("https://github.com/X-GenGroup/Flow-Factory/pull/186", clause="master.average-is-evaluated", kind="real")
class CastsOutliveASwapOfWeights(ReferenceTrainer):
    """At O1 evaluations between two updates share the casts of dense weights, also where averaged weights are used."""

    casts: Mapping[str, Tensor] | None = None

    def _evaluated(self, parameters: dict[str, Tensor], inputs: Array) -> Arrays:
        if self.recipe.precision.level == "O1" and self.recipe.quantization is None:
            if self.casts is None:
                self.casts = {name: parameters[name] for name in dense_weights(self.model)}
            parameters = {**parameters, **self.casts}
        return super()._evaluated(parameters, inputs)

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self.casts = None
        super().apply_update(gradients, rate)

    def load_state(self, arrays: Arrays) -> None:
        self.casts = None
        super().load_state(arrays)


@fault("", clause="master.small-update-survives", kind="invented")
class DecayRoundsTheMasters(ReferenceTrainer):
    """At O2 AdamW's decay multiplies the model's rounded weights and writes them to the masters."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        if isinstance(self.recipe.optimizer, AdamW) and self.recipe.optimizer.weight_decay:
            for name in gradients:
                if self.formats[name] != self.master_formats[name]:
                    self.masters[name] = self.values[name]
        super().apply_update(gradients, rate)


# recomputation


@fault("", clause="recompute.same-gradients", kind="invented")
class RecomputesInEvaluationMode(ReferenceTrainer):
    """A segment is run again in evaluation mode, so its batch norms take running statistics and dropout is off."""

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return super()._pass(parameters, training and not self._replaying)


# scaling


@fault("https://github.com/facebookresearch/fairscale/pull/263", clause="scaling.reports-true-loss", kind="real")
class NormIsInTheModelsFormat(ReferenceTrainer):
    """Where the model is low, squares of gradients are added up in its format: in float16 norms from 256 on are inf."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        low = {self.formats[name] for name in gradients} - {"float32", "float64"}
        if not low:
            return super().gradient_norm(gradients)
        narrowest = min(low, key=lambda name: FORMATS[name].largest)
        total = np.zeros(())
        for gradient in gradients.values():
            square = self.rounding.round(np.asarray(np.vdot(gradient, gradient)), narrowest)
            total = self.rounding.round(total + square, narrowest)
        return float(self.rounding.round(np.sqrt(total), "float32"))


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8471", clause="scaling.step-count-follows-updates", kind="real")
class OneCountForAllParameters(ReferenceTrainer):
    """Adam's bias correction of every parameter reads the count of the last one that has a gradient."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        counts = dict(self.counts)
        last = [name for name in self.masters if name in gradients][-1]
        for name in gradients:
            self.counts[name] = counts[last]
        super().apply_update(gradients, rate)
        self.counts = {name: count + (name in gradients) for name, count in counts.items()}


@fault("", clause="scaling.backs-off-on-overflow", kind="invented")
class OverflowTakesTheGrowthBack(ReferenceTrainer):
    """An overflow right after the scale grew divides it by the growth factor instead of multiplying by the backoff."""

    grew = False

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        moved = super().next_scale(scaler, finite)
        if self.grew and not finite:
            moved = moved.at(float(np.float32(scaler.scale / scaler.growth)), 0)
        self.grew = finite and moved.scale > scaler.scale
        return moved


@fault("", clause="scaling.two-optimizers", kind="invented")
class ScaleMovesForEachOptimizer(ReferenceTrainer):
    """With two optimizers the scaler is told of each update twice, once for each of them."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        for _ in range(self.recipe.optimizers):
            scaler = super().next_scale(scaler, finite)
        return scaler
