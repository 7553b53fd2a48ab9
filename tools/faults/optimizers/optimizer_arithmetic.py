"""Faults of the optimizers' arithmetic: Adam's epsilon, moments and counters, decay, velocity and the schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fixtures.recipe import Adam, AdamW
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.optimizers import EPSILON, Arithmetic
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


class _AsStored(Arithmetic):
    def epsilon(self, value: float) -> float:
        return float(self(np.asarray(value)))


class _AdamInFormat(ReferenceTrainer):
    """Computes an update in the format that `arithmetic` names."""

    def arithmetic(self, name: str) -> str:
        return self.master_formats[name]

    def arithmetic_of(self, name: str) -> Arithmetic:
        return _AsStored(self.rounding, self.arithmetic(name))


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives")
class EpsilonIsRoundedToZero(_AdamInFormat):
    """Adam's epsilon is rounded to the weights' format, where 1e-8 is zero if that is float16."""


@fault("https://github.com/nntrainer/nntrainer/pull/3565", "master.decay-survives", "autocast.float32-parity")
class DecayIsCoupled(ReferenceTrainer):
    """Weight decay joins the gradient before Adam normalises it."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        recipe = self.recipe
        if isinstance(recipe.optimizer, AdamW):
            share = recipe.optimizer.weight_decay
            gradients = {name: g + share * self.masters[name] for name, g in gradients.items()}
            self.recipe = recipe.replace(optimizer=replace(recipe.optimizer, weight_decay=0.0))
        super().apply_update(gradients, rate)
        self.recipe = recipe


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/10766", "master.moments-keep-precision")
class MomentsAreLoadedLow(ReferenceTrainer):
    """A load casts the moments to the model's compute format."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.scope.active:
            low = self.recipe.precision.format
            for values in self.slots.values():
                values.update({name: self.rounding.round(value, low) for name, value in values.items()})


@fault("https://github.com/tensorflow/tensorflow/issues/9047", "autocast.float32-parity")
class EpsilonIsDividedByTheCorrection(ReferenceTrainer):
    """Adam divides epsilon by the correction of the second moment along with that moment."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        recipe = self.recipe
        if isinstance(recipe.optimizer, Adam | AdamW):
            epsilon = EPSILON if recipe.optimizer.epsilon is None else recipe.optimizer.epsilon
            correction = (1.0 - recipe.optimizer.beta2 ** (self.steps + 1)) ** 0.5
            self.recipe = recipe.replace(optimizer=replace(recipe.optimizer, epsilon=epsilon / correction))
        super().apply_update(gradients, rate)
        self.recipe = recipe


@fault("https://github.com/ooples/AiDotNet/issues/2008", "autocast.float32-parity")
class VelocityNeverDecays(ReferenceTrainer):
    """Momentum's factor stands before the gradient instead of the velocity."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        factor = getattr(self.recipe.optimizer, "momentum", 0.0)
        if factor:
            velocity = self.slots["momentum"]
            velocity.update({name: value / factor for name, value in velocity.items()})
            gradients = {name: factor * g for name, g in gradients.items()}
        super().apply_update(gradients, rate)


@fault("https://github.com/pytorch/ao/pull/4915", "master.counts-every-update")
class CountsInBfloat16(ReferenceTrainer):
    """The count that Adam's bias correction reads stands still at 256."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self.counts = {name: min(count, 255) for name, count in self.counts.items()}


@fault("https://github.com/pytorch/pytorch/issues/28294", "scaling.tolerates-missing-gradients")
class MissingGradientsAreZero(ReferenceTrainer):
    """A parameter without a gradient is updated as if its gradient were zero: its moments move it."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update({**{n: np.zeros_like(v) for n, v in self.masters.items()}, **gradients}, rate)
