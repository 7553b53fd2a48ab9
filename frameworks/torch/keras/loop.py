"""The training loop of Keras' guide for PyTorch: `loss.backward()`, the gradients of variables, `optimizer.apply`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

import keras
import torch

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from frameworks.keras_common.layer_outputs import watched_by
from frameworks.keras_common.losses import batch_losses_of
from frameworks.keras_common.micro_batches import KerasMicroBatch
from frameworks.keras_common.network import BuiltNetwork
from frameworks.keras_common.optimizers import readable_optimizer
from frameworks.keras_common.scaler import is_dynamic
from frameworks.keras_common.stateful_run import TracedPass

Gradients = dict[str, torch.Tensor | None]
"""Scaled gradients by parameter, in model order."""


class AutogradBackend:
    """Updates by `Optimizer.apply`."""

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar weights by these gradients."""
        with torch.no_grad():
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradients], weights)


BACKEND = AutogradBackend()


class Readings(NamedTuple):
    """Loss scale, applied updates, rate, and the scaler's counter, -1 for none."""

    scale: float
    updates: int
    rate: float
    good: int


class EagerLoop:
    """The steps of one run."""

    def __init__(
        self, model: Model, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, separate_losses: bool
    ) -> None:
        self._model = model
        self._bound = bound
        self._optimizer = optimizer
        self._separate = separate_losses
        self._losses = batch_losses_of(model)

    def train(self, batch: Batch) -> KerasMicroBatch:
        """Forward, backward, and `optimizer.apply` of one micro-batch."""
        total, gradients = self._backward(self.losses(batch))
        return self._apply(float(total.detach()), gradients, batch.items)

    def gradients(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Gradients of one micro-batch, divided by the loss scale as `optimizer.apply` would."""
        return self._unscaled(self._backward(self.losses(batch))[1])

    def trace(self, batch: Batch) -> TracedPass:
        """The pass of `gradients` on one micro-batch, with outputs and gradients of every layer."""
        with _collected() as outputs:
            parameters = self._unscaled(self._backward(self.losses(batch))[1])
        result = {name: output.grad for name, output in outputs.items() if output.grad is not None}
        return TracedPass(
            {name: output.detach() for name, output in outputs.items()}, result, parameters, self._read().scale
        )

    def apply_gradients(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        """`optimizer.apply` of the back-propagated scaled Σ p·g over the parameters in `gradients`."""
        parts = [self._part(name, keras.ops.convert_to_tensor(value)) for name, value in gradients.items()]
        _, scaled = self._backward([reduce(torch.add, parts)] if parts else [])
        return self._apply(math.nan, scaled, 1)

    def _part(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        weight = self._bound.variables[name].value
        return (weight.to(gradient.dtype) * gradient).sum().to(torch.float32)

    def predict(self, inputs: Array) -> dict[str, torch.Tensor]:
        """Evaluation-mode outputs by head."""
        with torch.no_grad():
            return self._bound.network(keras.ops.convert_to_tensor(inputs), training=False)

    def losses(self, batch: Batch) -> list[torch.Tensor]:
        """Training-mode loss of each head that has targets, in one format."""
        outputs = self._bound.network(keras.ops.convert_to_tensor(batch.inputs), training=True)
        result = [
            self._losses[name, batch.mask is not None](batch.targets[name], outputs[name], sample_weight=batch.mask)
            for name, _ in self._model.losses
            if name in batch.targets
        ]
        widest = torch.float64 if any(loss.dtype == torch.float64 for loss in result) else result[0].dtype
        return [loss.to(widest) for loss in result]

    def _backward(self, losses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Gradients]:
        """The sum of the losses, and the gradients of its scaled value, or of each loss' own if they go apart."""
        self._bound.network.zero_grad()
        total = reduce(torch.add, losses) if losses else torch.zeros(())
        parts = losses if self._separate else [total][: len(losses)]
        for place, part in enumerate(parts, start=1):
            self._optimizer.scale_loss(part).backward(retain_graph=place < len(parts))
        return total, {name: variable.value.grad for name, variable in self._bound.variables.items()}

    def _apply(self, loss: float, gradients: Gradients, items: int) -> KerasMicroBatch:
        before = self._read()
        with torch.no_grad():
            self._optimizer.apply(list(gradients.values()), list(self._bound.variables.values()))
        after = self._read()
        applied = after.updates > before.updates
        return KerasMicroBatch(loss * items, items, before.scale, applied, before.rate, after.scale, after.good, loss)

    def _read(self) -> Readings:
        optimizer, reader = self._optimizer, readable_optimizer(self._optimizer)
        updates, rate = int(reader.iterations), float(reader.learning_rate)
        if is_dynamic(optimizer):
            return Readings(float(optimizer.dynamic_scale), updates, rate, int(optimizer.step_counter))
        constant = optimizer.loss_scale_factor
        return Readings(1.0 if constant is None else float(constant), updates, rate, -1)

    def _unscaled(self, gradients: Gradients) -> dict[str, torch.Tensor]:
        """Existing gradients divided by the loss scale as in the optimizer, in their own formats."""
        scale = self._read().scale
        present = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        return {name: (gradient / scale).to(gradient.dtype) for name, gradient in present.items()}


@contextmanager
def _collected() -> Iterator[dict[str, torch.Tensor]]:
    """Collects the output of every layer that runs within the context, and lets each keep its gradient."""
    outputs: dict[str, torch.Tensor] = {}

    def gather(name: str, output: torch.Tensor) -> torch.Tensor:
        if not output.requires_grad:
            output.requires_grad_()  # before the first parameter
        if name not in outputs:  # a recomputed segment runs again
            output.retain_grad()
            outputs[name] = output
        return output

    with watched_by(gather):
        yield outputs
