"""Faults of gradient accumulation in TensorFlow and Keras."""

from __future__ import annotations

from typing import Any

import keras

from frameworks.tf import TensorFlowFramework
from tools.faults import fault


@fault("https://github.com/paiml/aprender/pull/2123", "accumulation.keeps-precision")
class SumsTheWindow(TensorFlowFramework):
    """The gradients of a window are summed where they should be averaged."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        clip = keras.optimizers.Optimizer._clip_gradients

        def summed(self: Any, gradients: list[Any]) -> Any:
            return clip(self, [gradient * (self.gradient_accumulation_steps or 1) for gradient in gradients])

        keras.optimizers.Optimizer._clip_gradients = summed


@fault("https://github.com/pytorch/pytorch/issues/73784", "accumulation.each-counts-once")
class AccumulatorIsOverwritten(TensorFlowFramework):
    """Each micro-batch's gradient takes the place of what the accumulator held."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def overwrite(self: Any, gradients: list[Any], accumulators: list[Any]) -> None:
            for gradient, accumulator in zip(gradients, accumulators, strict=True):
                accumulator.assign(gradient)

        keras.src.backend.tensorflow.optimizer.TFOptimizer._backend_increment_gradient_accumulators = overwrite


@fault("https://github.com/hpcaitech/ColossalAI/issues/1028", "accumulation.each-counts-once")
class AccumulatorIsNotReset(TensorFlowFramework):
    """The accumulators are not set to zero at the end of a window."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keras.optimizers.Optimizer._backend_reset_gradient_accumulators = lambda self: None


@fault("https://github.com/espnet/espnet/pull/3283", "accumulation.bad-window-is-forgotten")
class AccumulatorIsEmptiedByAProduct(TensorFlowFramework):
    """The accumulators are multiplied by zero at the end of a window, so that what was infinite becomes NaN."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def multiplied(self: Any) -> None:
            for accumulator in self._accumulated_gradients:
                accumulator.assign(accumulator * 0.0)

        keras.optimizers.Optimizer._backend_reset_gradient_accumulators = multiplied
