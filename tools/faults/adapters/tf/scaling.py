"""Faults of loss scaling in TensorFlow and Keras."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from frameworks.tf import TensorFlowFramework
from tools.faults import fault

Optimizer, Scaler = keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer


@fault("https://github.com/keras-team/keras/issues/19479", "scaling.rescues-small-gradients")
class UnscalesWhatWasNotScaled(TensorFlowFramework):
    """The loss is not scaled, and its gradients are divided by the scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Scaler.scale_loss = lambda self, loss: loss


@fault("https://github.com/google-deepmind/optax/pull/1746", "scaling.detects-nan", "scaling.skip-is-atomic")
class AppliesOverflow(TensorFlowFramework):
    """`LossScaleOptimizer` takes every gradient for finite."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Scaler.check_finite = lambda self, gradients: tf.constant(True)


@fault("https://github.com/keras-team/keras/issues/20878", "scaling.skip-is-reported")
class IterationsStandStill(TensorFlowFramework):
    """`LossScaleOptimizer.iterations` is its own counter, which nothing advances."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Scaler.iterations = property(lambda self: self._iterations)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/3553", "scaling.grows-after-interval")
class OverflowKeepsCount(TensorFlowFramework):
    """An overflow does not start the count of finite updates again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def shrink(self: Any) -> None:
            self.dynamic_scale.assign(self.dynamic_scale * 0.5)

        Scaler._stateful_handle_non_finite_grads = shrink


@fault("https://github.com/keras-team/keras/pull/21233", "scaling.static-is-constant")
class UnscalesStaticScaleTwice(TensorFlowFramework):
    """A static scale is divided out of the gradients by the training step and again by the optimizer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        apply = Optimizer.apply

        def again(self: Any, gradients: list[Any], variables: Any = None) -> None:
            scale = self.loss_scale_factor or 1.0
            apply(self, [None if gradient is None else gradient / scale for gradient in gradients], variables)

        Optimizer.apply = again
