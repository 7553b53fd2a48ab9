"""Faults of an update that is skipped or abandoned: what it changes all the same, and how it is reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frameworks.contract import Update
from frameworks.reference.training.decisions import Arrays, OpenWindow
from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/google-deepmind/optax/pull/1746", "scaling.skip-is-atomic")
class GivesUpAfterFiftySkips(ReferenceTrainer):
    """After fifty non-finite updates in a row the next one is applied."""

    skips = 0

    def judge(self) -> frozenset[int]:
        result = super().judge()
        return result if self.skips < 50 else frozenset()

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        self.skips = 0 if finite else self.skips + 1
        return super().next_scale(scaler, finite)


@fault("https://github.com/PaddlePaddle/Paddle/pull/34075", "scaling.skip-is-atomic", "scaling.skip-is-reported")
class SkipIsAnUpdateOfZeros(ReferenceTrainer):
    """A non-finite update is made with gradients of zero, so that moments decay and move the weights."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            self.apply_update(
                {name: np.zeros_like(value) for name, value in self.masters.items()}, self.learning_rate()
            )
            self.sync_masters()
        return super().next_scale(scaler, finite)


@fault("https://github.com/PaddlePaddle/Paddle/issues/67895", "scaling.skip-leaves-no-residue")
class OverflowedGradientsStay(ReferenceTrainer):
    """The gradients of a skipped update are not cleared, and the next ones are added to them."""

    def apply(self) -> Update:
        window = self.window
        update = super().apply()
        if update.skipped:
            self.window = OpenWindow(gradients=window.gradients)
        return update


# how a skip is reported


@fault("https://github.com/huggingface/accelerate/issues/4242", "scaling.skip-is-reported")
class SkipReadFromCallCount(ReferenceTrainer):
    """An update counts as applied because the optimizer's step was called."""

    def apply(self) -> Update:
        return replace(super().apply(), skipped=False)


@fault("https://github.com/keras-team/keras/issues/20878", "scaling.step-count-follows-updates")
class StepCounterStandsStill(ReferenceTrainer):
    """The counter that a caller can read is never raised."""

    def optimizer_state(self) -> Arrays:
        return super().optimizer_state() | {"steps": np.array(0)}


# abandoned updates


@fault("https://github.com/Haian-Jin/LVSM/pull/19", "scaling.abandoned-update-leaves-no-trace")
class AbandonedUpdateStaysOpen(ReferenceTrainer):
    """An update that is given up on after unscaling leaves the scaler as if its step were still to come."""

    def discard(self) -> Update:
        window = self.window
        update = super().discard()
        self.window = window
        return update


@fault("https://github.com/espnet/espnet/pull/2362", "scaling.abandoned-update-leaves-no-trace")
class AbandonedOverflowIsForgotten(ReferenceTrainer):
    """An update that is given up on counts as a finite one, so that its overflow can let the scale grow."""

    def discard(self) -> Update:
        scaler = self.scaler
        update = super().discard()
        self.scaler = None if scaler is None else scaler.adjust(True)
        return replace(update, scale_after=1.0 if self.scaler is None else self.scaler.scale)
