"""Faults of recomputation in JAX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.jax import JaxFramework
from frameworks.jax.core.arrays import Flat
from frameworks.jax.training.scaler import ScaleUpdate
from frameworks.jax.training.trainer import JaxTrainer
from tools.faults import fault


class Calls(JaxFramework):
    """Splits one verb in two."""

    def called(self, case: RecomputeCase, x: Array, w: Array, variant: str | None) -> RecomputeResult:
        """The recomputation as it should be."""
        return super().recompute(case, x, w, variant)


@fault("https://github.com/PaddlePaddle/Paddle/issues/62981", "recompute.no-grad-input")
class ClosedOverWeightIsConstant(Calls):
    """A weight that the function closes over counts as a constant: its gradient is zero."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = self.called(case, x, w, variant)
        return replace(result, w=np.zeros_like(w)) if case == "no-grad-input" else result


@fault("https://github.com/PaddlePaddle/Paddle/issues/62363", "recompute.containers")
class KeywordsThroughBfloat16(Calls):
    """Arrays in keyword arguments are recomputed from bfloat16 copies."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if case != "keyword":
            return self.called(case, x, w, variant)
        coarse = (np.asarray(jax.numpy.asarray(array, jax.numpy.bfloat16), np.float32) for array in (x, w))
        return replace(self.called(case, *coarse, variant), value=self.called(case, x, w, variant).value)


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "recompute.detects-changed-weights")
class RecomputesWithChangedWeights(Calls):
    """The recomputed forward reads weights that changed after the first one."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if case != "weights-changed":
            return self.called(case, x, w, variant)
        return replace(self.called("positional", x, 3 * w, variant), value=self.called("plain", x, w, variant).value)


@fault("https://github.com/pytorch/pytorch/issues/190758", "recompute.replays-dropout")
class DrawsOtherMasks(JaxFramework):
    """A run with recomputation draws its masks from a key of its own."""

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        backward = JaxTrainer._backward

        def folded(self: JaxTrainer, batch: Batch, items: int) -> tuple[Flat, ScaleUpdate | None, float]:
            if self.recipe.recompute is not None:
                key = jax.random.fold_in(jax.random.wrap_key_data(self.moved.key), 1)
                self.moved = self.moved._replace(key=jax.random.key_data(key))
            return backward(self, batch, items)

        JaxTrainer._backward = folded


@fault("https://github.com/jax-ml/jax/pull/37888", "recompute.frees-activations")
class CheckpointDoesNothing(JaxFramework):
    """`nn.remat` runs its function and keeps every activation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        nn.remat = lambda function, **_: function
