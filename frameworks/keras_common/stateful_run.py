"""One training run on a backend whose variables hold the run's state."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.base import NO_AVERAGE, traced_paths, unscaled_in_trace
from frameworks.contract import LayerTrace
from frameworks.keras_common.layer_outputs import Tensor
from frameworks.keras_common.micro_batches import KerasMicroBatch
from frameworks.keras_common.optimizers import readable_optimizer
from frameworks.keras_common.run import KerasRun


@dataclass(frozen=True)
class TracedPass:
    """One pass from inside.

    Attributes:
        outputs: of every layer, by the name of the Keras layer, in execution order.
        gradients: of the scaled loss for these outputs.
        parameters: the result of `KerasLoop.gradients`.
        scale: the loss scale.
    """

    outputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    scale: Any


class KerasLoop(Protocol):
    """The training loop of Keras' guide for a backend."""

    def train(self, batch: Batch) -> KerasMicroBatch:
        """Forward, backward, and `optimizer.apply` of one micro-batch."""

    def gradients(self, batch: Batch) -> dict[str, Tensor]:
        """Existing gradients of one micro-batch, divided by the loss scale as `optimizer.apply` would."""

    def trace(self, batch: Batch) -> TracedPass:
        """The pass of `gradients` on one micro-batch, with outputs and gradients of every layer."""

    def apply_gradients(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        """`optimizer.apply` of the back-propagated scaled Σ p·g over the parameters in `gradients`."""

    def predict(self, inputs: Array) -> dict[str, Tensor]:
        """Evaluation-mode outputs by head."""


class StatefulRun(KerasRun):
    """One run, whose state is that of Keras' variables.

    Attributes:
        loop: its training loop.
        compiling: arguments of `Model.compile`, for evaluation with the average.
    """

    loop: KerasLoop
    compiling: Mapping[str, Any]

    @abstractmethod
    def array(self, tensor: Tensor) -> Array:
        """A copy of a tensor in its true format."""

    def applied_updates(self) -> Array:
        return self.array(keras.ops.convert_to_tensor(readable_optimizer(self.optimizer).iterations))

    def accumulate(self, batch: Batch, items: int) -> float:
        with self.scope():
            return self.enter(self.loop.train(batch))

    def fed(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        return self.loop.apply_gradients(gradients)

    def gradients(self, window: Window) -> dict[str, Array]:
        with self.scope():
            return self.mean([self.loop.gradients(batch) for batch in window])

    def mean(self, gradients: Sequence[Mapping[str, Tensor]]) -> dict[str, Array]:
        """The mean of the micro-batches' gradients; missing ones count as zeros."""
        totals: dict[str, Tensor] = {}
        for own in gradients:
            for name, gradient in own.items():
                totals[name] = totals[name] + gradient if name in totals else gradient
        result = {name: self.bound.canonical(name, self.array(total)) for name, total in totals.items()}
        return {name: value / np.asarray(len(gradients), value.dtype) for name, value in result.items()}

    def predict(self, inputs: Array) -> dict[str, Array]:
        with self.scope():
            outputs = self.loop.predict(inputs)
        return {name: self.array(output) for name, output in outputs.items()}

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        """`Model.predict` with the callback `SwapEMAWeights`, as Keras documents evaluation with the average."""
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        network, average = self.bound.network, keras.callbacks.SwapEMAWeights()
        with self.scope():
            if getattr(network, "optimizer", None) is not self.optimizer:
                network.compile(optimizer=self.optimizer, auto_scale_loss=False, **self.compiling)
            outputs = network.predict(inputs, batch_size=len(inputs), verbose=0, callbacks=[average])
        return {name: np.asarray(output) for name, output in outputs.items()}

    def trace(self, batch: Batch) -> LayerTrace:
        with self.scope():
            traced = self.loop.trace(batch)
        layers, scale = self.bound.layers, float(traced.scale)
        paths = traced_paths(self.model, batch)
        return LayerTrace(
            {path: self.array(traced.outputs[layers[path]]) for path in paths},
            {path: unscaled_in_trace(self.array(traced.gradients[layers[path]]), scale) for path in paths},
            {name: self.bound.canonical(name, self.array(value)) for name, value in traced.parameters.items()},
        )
