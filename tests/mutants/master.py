"""Faults of master weights, of moments and of the optimizers' arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import SGD, AdamW
from frameworks.reference.optimizers import Arithmetic, stepper
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault

Arrays = dict[str, Array]


@fault(
    "https://github.com/pytorch/ao/pull/1124",
    component="masters",
    clauses=("master.small-update-survives", "master.decay-survives"),
)
class UpdatesTheLowWeights(ReferenceTrainer):
    """The weights that are updated have the low format, so that small updates are rounded away."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if self.scope.active:
            low = self.recipe.precision.format
            self.masters = {name: self.rounding.round(value, low) for name, value in self.masters.items()}


@fault(
    "https://github.com/NVIDIA/apex/issues/180",
    component="masters",
    clauses=("master.model-is-cast-of-master",),
)
class ModelFallsBehind(ReferenceTrainer):
    """The model takes the masters over before they are updated."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self.before = dict(self.masters)
        super().apply_update(gradients, rate)

    def sync_masters(self) -> None:
        now, self.masters = self.masters, getattr(self, "before", self.masters)
        super().sync_masters()
        self.masters = now


@fault(
    "https://github.com/stillwater-sc/universal/issues/1133",
    component="masters",
    clauses=("master.model-is-cast-of-master",),
)
class ModelIsTruncated(ReferenceTrainer):
    """The model's weights are the masters with their low bits cut off instead of rounded."""

    def sync_masters(self) -> None:
        super().sync_masters()
        if self.recipe.precision.level == "O2":
            for name, value in self.masters.items():
                over = np.abs(self.values[name]) > np.abs(value)
                inner = self.rounding.round(value - (self.values[name] - value), self.formats[name])
                self.values[name] = np.where(over, inner, self.values[name])


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/39121",
    component="checkpoint",
    clauses=("master.masters-survive-load",),
)
class MastersAreRebuiltFromTheModel(ReferenceTrainer):
    """Masters are no part of a checkpoint; a load makes them from the model's low weights."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.masters = dict(self.values)


@fault(
    "https://github.com/NVIDIA/apex/issues/480",
    component="checkpoint",
    clauses=("master.model-is-cast-of-master", "master.masters-survive-load"),
)
class LoadsTheModelAlone(ReferenceTrainer):
    """A load brings the model's weights back and leaves the masters as they were."""

    def load_state(self, arrays: Arrays) -> None:
        held = self.masters
        super().load_state(arrays)
        self.masters = held


class _AsStored(Arithmetic):
    def epsilon(self, value: float) -> float:
        return float(self(np.asarray(value)))


class _AdamInFormat(ReferenceTrainer):
    """Computes an update in the format that `arithmetic` names."""

    def arithmetic(self, name: str) -> str:
        return self.master_formats[name]

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        for name, gradient in gradients.items():
            step = stepper(self.recipe.optimizer, self.conventions, _AsStored(self.rounding, self.arithmetic(name)))
            self.counts[name] += 1
            slots = {slot: values[name] for slot, values in self.slots.items()}
            taken = self.as_applied(name, gradient)
            self.masters[name], moved = step(self.masters[name], slots, taken, rate, self.counts[name])
            for slot, value in moved.items():
                self.slots[slot][name] = value
        self.steps += 1


@fault(
    "https://github.com/google-deepmind/optax/issues/1754",
    component="optimizer",
    clauses=("master.adam-epsilon-survives",),
)
class EpsilonIsRoundedToZero(_AdamInFormat):
    """Adam's epsilon is rounded to the weights' format, in which it is zero."""


@fault(
    "https://github.com/keras-team/keras/issues/11860",
    component="optimizer",
    clauses=("master.adam-epsilon-survives", "master.moments-keep-precision"),
)
class UpdateIsComputedLow(_AdamInFormat):
    """Every update is computed in the compute format, whatever the masters' is."""

    def arithmetic(self, name: str) -> str:
        del name
        return self.recipe.precision.format


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/5836",
    component="optimizer",
    clauses=("master.decay-survives", "autocast.float32-parity"),
)
class DecayIsIgnored(ReferenceTrainer):
    """Weight decay is accepted and has no effect."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        held = self.recipe
        if isinstance(held.optimizer, AdamW):
            self.recipe = held.but(optimizer=replace(held.optimizer, weight_decay=0.0))
        super().apply_update(gradients, rate)
        self.recipe = held


@fault(
    "https://github.com/nntrainer/nntrainer/pull/3565",
    component="optimizer",
    clauses=("master.decay-survives", "autocast.float32-parity"),
)
class DecayIsCoupled(ReferenceTrainer):
    """Weight decay joins the gradient before Adam normalises it."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        held = self.recipe
        if isinstance(held.optimizer, AdamW):
            share = held.optimizer.weight_decay
            gradients = {name: g + share * self.masters[name] for name, g in gradients.items()}
            self.recipe = held.but(optimizer=replace(held.optimizer, weight_decay=0.0))
        super().apply_update(gradients, rate)
        self.recipe = held


@fault(
    "https://github.com/google-deepmind/optax/issues/1552",
    component="optimizer",
    clauses=("master.moments-keep-precision",),
)
class SecondMomentIsLow(ReferenceTrainer):
    """The second moment holds low values, in arrays of float32."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if self.scope.active:
            held, low = self.slots.get("second_moment", {}), self.recipe.precision.format
            held.update({name: self.rounding.round(value, low) for name, value in held.items()})


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/10766",
    component="checkpoint",
    clauses=("master.moments-keep-precision",),
)
class MomentsAreLoadedLow(ReferenceTrainer):
    """A load casts the moments to the model's compute format."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.scope.active:
            low = self.recipe.precision.format
            for values in self.slots.values():
                values.update({name: self.rounding.round(value, low) for name, value in values.items()})


@fault(
    "https://github.com/ml-explore/mlx/pull/1640",
    component="optimizer",
    clauses=("autocast.float32-parity",),
)
class AdamIsNotCorrected(ReferenceTrainer):
    """Adam leaves out the correction for the zeros that its moments began with."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        held, self.counts = self.counts, dict.fromkeys(self.counts, 10**6)
        super().apply_update(gradients, rate)
        self.counts = {name: count + (name in gradients) for name, count in held.items()}


@fault(
    "https://github.com/keras-team/keras/issues/17391",
    component="optimizer",
    clauses=("autocast.float32-parity",),
)
class EpsilonInsideTheRoot(ReferenceTrainer):
    """Adam takes the square root of the second moment and epsilon together."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        held = self.recipe
        if not isinstance(held.optimizer, SGD):
            self.recipe = held.but(optimizer=replace(held.optimizer, epsilon=held.optimizer.epsilon**0.5))
        super().apply_update(gradients, rate)
        self.recipe = held


@fault(
    "https://github.com/tensorflow/tensorflow/issues/9047",
    component="optimizer",
    clauses=("autocast.float32-parity",),
)
class EpsilonIsDividedByTheCorrection(ReferenceTrainer):
    """Adam divides epsilon by the correction of the second moment along with that moment."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        held = self.recipe
        if not isinstance(held.optimizer, SGD):
            correction = (1.0 - held.optimizer.beta2 ** (self.steps + 1)) ** 0.5
            self.recipe = held.but(optimizer=replace(held.optimizer, epsilon=held.optimizer.epsilon / correction))
        super().apply_update(gradients, rate)
        self.recipe = held


@fault(
    "https://github.com/ooples/AiDotNet/issues/2008",
    component="optimizer",
    clauses=("autocast.float32-parity",),
)
class VelocityNeverDecays(ReferenceTrainer):
    """Momentum's factor stands before the gradient instead of the velocity."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        factor = getattr(self.recipe.optimizer, "momentum", 0.0)
        if factor:
            held = self.slots["momentum"]
            held.update({name: value / factor for name, value in held.items()})
            gradients = {name: factor * g for name, g in gradients.items()}
        super().apply_update(gradients, rate)
