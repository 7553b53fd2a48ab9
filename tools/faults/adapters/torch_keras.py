"""Faults of Keras on PyTorch, patched into the calls that the adapter makes."""

from __future__ import annotations

from typing import Any

from frameworks.torch.keras.framework import KerasOnTorch  # imported first: it chooses Keras' backend

import keras  # isort: skip
import torch  # isort: skip
from keras.src.backend.torch.optimizers import torch_adam  # isort: skip

from tools.faults import fault


@fault("https://github.com/deeplearning4j/nd4j/pull/1227", "master.counts-every-update", mode="keras")
class CorrectsByThePreviousUpdate(KerasOnTorch):
    """Adam's bias correction counts the updates before this one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        update = torch_adam.Adam._parallel_update_step

        def late(self: Any, *given: Any) -> None:
            self._iterations.assign_sub(1)
            update(self, *given)
            self._iterations.assign_add(1)

        torch_adam.Adam._parallel_update_step = late


@fault("https://github.com/petuum/adaptdl/pull/26", "accumulation.once-per-window", mode="keras")
class ClipsTheSumOfTheWindow(KerasOnTorch):
    """The sum of a window's gradients is clipped, and its mean is taken afterwards."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        clip = keras.optimizers.Optimizer._clip_gradients

        def early(self: Any, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
            steps = self.gradient_accumulation_steps or 1
            return [gradient / steps for gradient in clip(self, [gradient * steps for gradient in gradients])]

        keras.optimizers.Optimizer._clip_gradients = early


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8588", "accumulation.scale-is-constant-in-window", mode="keras")
class UnscalesByTheGrownScale(KerasOnTorch):
    """In the update at which the scale grows, gradients are divided by the grown scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        update = keras.optimizers.LossScaleOptimizer._stateful_handle_finite_grads

        def grown(self: Any, gradients: list[Any], variables: list[Any]) -> None:
            grows = int(self.step_counter) == self.dynamic_growth_steps - 1
            update(self, [g if g is None or not grows else g / 2.0 for g in gradients], variables)

        keras.optimizers.LossScaleOptimizer._stateful_handle_finite_grads = grown
