"""Held-out faults of scaling: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import FORMATS, Array
from frameworks.reference.core.tape import Pullback
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", "scaling.stays-finite")
class FlushedReciprocal(ReferenceTrainer):
    """Gradients are unscaled by a reciprocal that is flushed to zero where it is subnormal: at the largest scale an
    ordinary update is counted as a good one and moves nothing."""

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        if 1.0 / self.scaler.scale < 2.0 ** FORMATS["float32"].smallest_exponent:
            return np.where(np.isfinite(gradient), 0.0, gradient)
        return super().unscale(name, gradient)


@fault("", "scaling.two-losses")
class FirstLossOverflowRepaired(ReferenceTrainer):
    """With a backward pass for each loss, what the second pass finds non-finite from the first is started anew."""

    def _pulled(self, pullbacks: list[Pullback]) -> Arrays:
        total = super()._pulled(pullbacks[:1])
        for pullback in pullbacks[1:]:
            for name, gradient in super()._pulled([pullback]).items():
                former = total.get(name)
                clean = former is not None and bool(np.isfinite(former).all())
                total[name] = gradient + former if clean else gradient
        return total
