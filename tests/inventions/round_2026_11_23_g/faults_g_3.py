"""Invented faults: odd moments, odd values, and techniques that meet."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import AdamW, DynamicScaling
from frameworks.contract import Update
from frameworks.reference.scaler import LossScale
from frameworks.reference.tensor import Tensor, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("", clause="accumulation.each-counts-once", kind="invented")
class FailedBatchKeepsItsItems(ReferenceTrainer):
    """A micro-batch whose forward pass raises stays in the window's loss with its items and a loss of 0."""

    def accumulate(self, batch: Batch, items: int) -> float:
        losses = self.window.losses
        losses.append((0.0, batch.items))
        place = len(losses) - 1
        loss = super().accumulate(batch, items)
        del losses[place]
        return loss


@fault("", clause="scaling.abandoned-update-leaves-no-trace", kind="invented")
class AbandonAsksFirstOptimizer(ReferenceTrainer):
    """An abandoned update looks for an overflow in the first optimizer's gradients alone."""

    giving_up = False

    def abandon(self) -> Update:
        self.giving_up = True
        try:
            return super().abandon()
        finally:
            self.giving_up = False

    def judge(self) -> frozenset[int]:
        found = super().judge()
        return found & {0} if self.giving_up else found


@fault("", clause="scaling.rescues-small-gradients", kind="invented")
class UnscalingFlushesSubnormals(ReferenceTrainer):
    """Unscaled gradients below the smallest normal float32 number become 0."""

    def unscale(self, name: str, gradient: Array) -> Array:
        unscaled = super().unscale(name, gradient)
        if self.accumulator_format(name) != "float32":
            return unscaled
        return np.where(np.abs(unscaled) < 2.0**-126, np.copysign(0.0, unscaled), unscaled)


@fault("", clause="resume.bit-identical", kind="invented")
class LoadLosesSignOfZero(ReferenceTrainer):
    """A load turns every negative zero of weights, moments and averages into a positive one."""

    def load_state(self, arrays: dict[str, Array]) -> None:
        super().load_state({name: a + 0.0 if a.dtype.kind == "f" else a for name, a in arrays.items()})


@fault("", clause="resume.bit-identical", kind="invented")
class SecondGroupDecaysByDefault(ReferenceTrainer):
    """After a load the second parameter group of AdamW decays by 0.01, whatever the recipe says."""

    loaded = False

    def load_state(self, arrays: dict[str, Array]) -> None:
        super().load_state(arrays)
        self.loaded = True

    def apply_update(self, gradients: dict[str, Array], rate: float) -> None:
        recipe, steps = self.recipe, self.steps
        if not (self.loaded and recipe.groups == 2 and isinstance(recipe.optimizer, AdamW)):
            return super().apply_update(gradients, rate)
        super().apply_update({n: g for n, g in gradients.items() if self._places[n] % 2 == 0}, rate)
        self.recipe, self.steps = recipe.but(optimizer=replace(recipe.optimizer, weight_decay=0.01)), steps
        super().apply_update({n: g for n, g in gradients.items() if self._places[n] % 2}, rate)
        self.recipe = recipe
        return None


@fault("", clause="accumulation.evaluation-changes-nothing", kind="invented")
class FailedEvaluationLeavesAverage(ReferenceTrainer):
    """If evaluation with the average raises, the average stays in the place of the model's weights."""

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self.recipe.average is None:
            return super().predict_averaged(inputs)
        own, self.values = self.values, {name: self.averaged(name) for name in self.averages}
        outputs = self.predict(inputs)
        self.values = own
        return outputs


@fault("", clause="recompute.replays-dropout", kind="invented")
class ReplayCountsInAByte(ReferenceTrainer):
    """Recomputation remembers the place in the random stream in one byte, so from the 256th mask on it takes others."""

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        return super().replay_random(draws % 256)


@fault("", clause="resume.mid-window", kind="invented")
class OpenWindowSavedInFloat32(ReferenceTrainer):
    """A save inside a window writes the accumulators of float64 parameters in float32."""

    def save_state(self) -> dict[str, Array]:
        arrays = super().save_state()
        return {n: self.rounding.round(a, "float32") if n.startswith("window/") else a for n, a in arrays.items()}


@fault("", clause="scaling.automaton", kind="invented")
class ScalerRuleOfFirstRun(ReferenceTrainer):
    """A second run of a model in one process moves its scale by the factors and the interval of the first one."""

    first: ClassVar[dict[str, LossScale]] = {}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.scaler is not None and isinstance(self.recipe.scaling, DynamicScaling):
            rule = self.first.setdefault(self.model.name, self.scaler)
            self.scaler = replace(self.scaler, growth=rule.growth, backoff=rule.backoff, interval=rule.interval)


@fault("", clause="scaling.reports-true-loss", kind="invented")
class NothingCountsAsOneItem(ReferenceTrainer):
    """In the reported loss of a window a micro-batch without any item counts as one item of loss 0."""

    def accumulate(self, batch: Batch, items: int) -> float:
        loss = super().accumulate(batch, items)
        if not batch.items:
            self.window.losses[-1] = (self.window.losses[-1][0], 1)
        return loss


@fault("", clause="scaling.unscales-before-clipping", kind="invented")
class NormFromBeforeTheCaller(ReferenceTrainer):
    """The norm is taken when gradients are unscaled; what the caller adds afterwards is clipped by the old norm."""

    def unscale_gradients(self) -> None:
        super().unscale_gradients()
        if self.scaler is not None and self.window.gradients:
            self.window.norm = super().gradient_norm(self.window.gradients)  # type: ignore[attr-defined]

    def gradient_norm(self, gradients: Any) -> float:
        known = getattr(self.window, "norm", None)
        if known is None or len(gradients) != len(self.window.gradients):
            return super().gradient_norm(gradients)
        return float(known)


@fault("", clause="scaling.scale-is-float32", kind="invented")
class LossScaledInBfloat16(ReferenceTrainer):
    """With bfloat16 the loss is multiplied by the scale rounded to bfloat16, gradients are divided by the true one."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        if self.scaler is None or self.recipe.precision.format != "bfloat16":
            return super().scale_loss(loss)
        wide = super().scale_loss(loss).format
        scale = self.rounding.constant(self.scaler.scale, "bfloat16")
        return Tensor(rounded(self.ops.cast(loss, wide).value * scale, self.rounding, wide), wide)


@fault("", clause="autocast.evaluation-parity", kind="invented")
class EvaluationKeepsStatistics(ReferenceTrainer):
    """Evaluation keeps the running statistics that it found until the next applied update, though they move before."""

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        found = self.__dict__.setdefault("found", {})
        return found.setdefault((path, self.steps), super().running_statistics(path))


@fault("", clause="resume.refusal-changes-nothing", kind="invented")
class RefusedLoadDropsWindow(ReferenceTrainer):
    """A load empties the open window before it looks at the file, so a refused load loses the window."""

    def restore(self, path: Path) -> None:
        self.empty_accumulator()
        super().restore(path)
