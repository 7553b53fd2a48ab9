"""Faults of the search for infinities and NaN: which gradients are searched, when, and for what."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/inferno-pytorch/inferno/pull/119", "scaling.detects-inf")
class OnlyNaNIsLookedFor(ReferenceTrainer):
    """Gradients are searched for NaN, not for infinities."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return any(bool(np.isnan(g).any()) for g in gradients.values())


@fault("https://github.com/epfLLM/Megatron-LLM/pull/34", "scaling.detects-nan")
class NaNComparesAsSmall(ReferenceTrainer):
    """The largest magnitude is compared with the largest finite number, and NaN is not above it."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return any(float(np.abs(g).max()) > np.finfo(np.float64).max for g in gradients.values())


@fault("https://github.com/PaddlePaddle/Paddle/pull/47665", "scaling.detects-every-group")
class Float64IsNotLookedAt(ReferenceTrainer):
    """The check collects gradients of float32 and narrower formats only."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().has_nonfinite({n: g for n, g in gradients.items() if self.formats[n] != "float64"})


@fault("https://github.com/NVIDIA-NeMo/Speech/pull/637", "scaling.automaton")
class SumOverflowsInTheCheck(ReferenceTrainer):
    """The check looks at the sum of squares in float32, which a single large finite gradient overflows."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return not all(bool(np.isfinite(np.sum(g.astype(np.float32) ** 2))) for g in gradients.values())


@fault("https://github.com/nerfstudio-project/nerfstudio/pull/1919", "scaling.tolerates-missing-gradients", raises=True)
class NoGradientRaises(ReferenceTrainer):
    """An update in which no parameter has a gradient raises: nothing was checked."""

    def _step(self, rate: float) -> bool:
        assert self.window.gradients, "No inf checks were recorded for this optimizer."
        return super()._step(rate)


@fault("https://github.com/pytorch/pytorch/pull/97886", "scaling.detects-what-is-applied")
class CheckIsLatchedWhenUnscaled(ReferenceTrainer):
    """Gradients are checked when they are unscaled; what becomes of them later is applied."""

    def unscale_gradients(self) -> None:
        super().unscale_gradients()
        self.window.latched = self.judge()
