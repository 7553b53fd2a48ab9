"""Faults of gradient accumulation in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from frameworks.jax import JaxFramework
from frameworks.jax.training.trainer import JaxTrainer
from tools.faults import fault


@fault("https://github.com/huggingface/transformers/pull/34191", "accumulation.weighs-items")
class MeanOfMeans(JaxFramework):
    """Each micro-batch's loss is its own mean over the number of micro-batches."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        backward = JaxTrainer._backward
        JaxTrainer._backward = lambda self, batch, _: backward(self, batch, batch.items * self.recipe.accumulation)


@fault("https://github.com/mlnomadpy/flaxchat/issues/6", "accumulation.keeps-precision")
class AccumulatesLow(JaxFramework):
    """`optax.MultiSteps` holds its sums in bfloat16."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = optax.MultiSteps.__init__

        def low(self: optax.MultiSteps, *given: Any, accumulator_dtype: Any, **named: Any) -> None:
            make(self, *given, accumulator_dtype=jnp.bfloat16, **named)

        optax.MultiSteps.__init__ = low


@fault(
    "https://github.com/facebookresearch/mmf/pull/747",
    "accumulation.each-counts-once",
    "accumulation.equals-full-batch",
)
class ForgetsTheWindow(JaxFramework):
    """`optax.MultiSteps` begins its sum again with every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        update = optax.MultiSteps.update

        def forgetful(self: optax.MultiSteps, updates: Any, state: Any, *rest: Any, **named: Any) -> Any:
            return update(
                self, updates, state._replace(acc_grads=optax.tree.zeros_like(state.acc_grads)), *rest, **named
            )

        optax.MultiSteps.update = forgetful


@fault("https://github.com/google-research/vision_transformer/issues/286", "accumulation.fresh-dropout")
class DrawsTheSameMasks(JaxFramework):
    """The key is never split, so every micro-batch drops the same values."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        jax.random.split = lambda key, *_: (key, key)
