"""Faults of clipping: which norm it compares, and of which gradients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/HomebrewML/HeavyBall/issues/72", "accumulation.clips-only-what-is-larger")
class ClippingScalesUp(ReferenceTrainer):
    """Gradients below the clipping norm are scaled up to it."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is None:
            return gradients
        factor = self.recipe.clip / max(self.gradient_norm(gradients), 1e-30)
        return {name: g * factor for name, g in gradients.items()}


@fault("https://github.com/NVIDIA/apex/pull/1512", "scaling.unscales-before-clipping", "scaling.is-transparent")
class ClipCoefficientIsUnscaledToo(ReferenceTrainer):
    """The clip coefficient is divided by the scale once more."""

    def clip(self, gradients: Arrays) -> Arrays:
        clipped = super().clip(gradients)
        return clipped if clipped is gradients else {name: self.unscale(name, g) for name, g in clipped.items()}


@fault("https://github.com/catalyst-team/catalyst/issues/1319", "scaling.reports-true-loss")
class ReportsTheScaledNorm(ReferenceTrainer):
    """The gradient norm is that of the scaled gradients."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        return super().gradient_norm(gradients) * (1.0 if self.scaler is None else self.scaler.scale)


@fault("https://github.com/Skovorp/feral/pull/16", "accumulation.clip-off-is-off")
class ClipsAtInfinityToLogTheNorm(ReferenceTrainer):
    """Without a bound gradients are multiplied by the least of 1 and infinity over their norm, which may be NaN."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is not None or self.scaler is not None:
            return super().clip(gradients)
        factor = np.minimum(np.float32(np.inf) / np.float32(self.gradient_norm(gradients)), np.float32(1.0))
        return {name: gradient * factor for name, gradient in gradients.items()}
