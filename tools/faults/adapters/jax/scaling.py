"""Faults of loss scaling in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jmp
import optax

from frameworks.base import BaseTrainer
from frameworks.jax import JaxFramework
from frameworks.jax.training.trainer import JaxTrainer
from tools.faults import fault


@fault(
    "https://github.com/google-deepmind/optax/pull/1746",
    "scaling.skip-is-atomic",
    "scaling.detects-inf",
    "scaling.detects-nan",
)
class AppliesOverflow(JaxFramework):
    """`jmp.select_tree` takes the new state although a gradient is infinite."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        jmp.select_tree = lambda finite, new, old: new


@fault("https://github.com/google/flax/issues/2547", "scaling.grows-after-interval", "scaling.automaton")
class GrowsOneUpdateLate(JaxFramework):
    """The scale grows after one finite update more than the interval says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = jmp.DynamicLossScale.adjust

        def late(self: Any, finite: jax.Array) -> Any:
            longer = jmp.DynamicLossScale(self.loss_scale, self.counter, self.period + 1, self.factor)
            result = adjust(longer, finite)
            return jmp.DynamicLossScale(result.loss_scale, result.counter, self.period, self.factor)

        jmp.DynamicLossScale.adjust = late


@fault("https://github.com/deepspeedai/DeepSpeed/pull/3553", "scaling.grows-after-interval", "scaling.automaton")
class OverflowKeepsCount(JaxFramework):
    """An overflow does not start the count of finite updates again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = jmp.DynamicLossScale.adjust

        def keeping(self: Any, finite: jax.Array) -> Any:
            result = adjust(self, finite)
            counter = jnp.where(finite, result.counter, self.counter)
            return jmp.DynamicLossScale(result.loss_scale, counter, self.period, self.factor)

        jmp.DynamicLossScale.adjust = keeping


@fault("https://github.com/NVIDIA/apex/issues/834", "scaling.stays-positive")
class ScaleHasNoFloor(JaxFramework):
    """The scale is halved with every overflow until it is zero."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = jmp.DynamicLossScale.adjust

        def sinking(self: Any, finite: jax.Array) -> Any:
            result = adjust(self, finite)
            scale = jnp.where(finite, result.loss_scale, self.loss_scale / self.factor)
            return jmp.DynamicLossScale(scale, result.counter, self.period, self.factor)

        jmp.DynamicLossScale.adjust = sinking


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    "scaling.unscales-before-clipping",
    "scaling.reports-true-loss",
)
class ClipsScaledGradients(JaxFramework):
    """Gradients are clipped by their global norm while they are still scaled."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        take = JaxTrainer._taken_out

        def clipped(self: JaxTrainer) -> Any:
            (gradients, judged), limit = take(self), self.recipe.clip
            if limit is not None:
                gradients, _ = optax.clip_by_global_norm(limit).update(gradients, None)
            return gradients, judged

        JaxTrainer._taken_out = clipped
        JaxTrainer.update = BaseTrainer.update
