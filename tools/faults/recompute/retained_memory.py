"""Faults of what stays in memory between forward and backward pass, and from one step to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fixtures.model import Batch
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.forward import Layers
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

LOW = ("float16", "bfloat16")


@fault("https://github.com/pytorch/tutorials/issues/1267", "cost.mixed-bytes")
class Float32CopiesKept(Operations):
    """Next to each product in 16 bits its float32 value is kept."""

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        y = super()._product(op, function, *operands)
        if self.tape and y.format in LOW:
            self.tape.keep(Tensor(y.value, "float32"))
        return y


@fault("https://github.com/keras-team/keras/issues/15474", "cost.mixed-bytes")
class WeightsCopiedAtEveryUse(Operations):
    """A product makes a 16-bit copy of its weight for the forward pass and another for the backward pass."""

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        y = super()._product(op, function, *operands)
        if self.tape and y.format in LOW:
            weight = Tensor(operands[1].value, y.format)
            self.tape.keep_bytes(2 * weight.bytes)
        return y


Parameters = Mapping[str, Tensor]


@fault("https://github.com/pytorch/pytorch/pull/78752", "cost.recompute-bytes")
class OutputsKeptAsWell(ReferenceTrainer):
    """A recomputed segment keeps its output next to its input."""

    def _recomputed(
        self, layers: Layers, parameters: Parameters, x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        y = super()._recomputed(layers, parameters, x, depth, index)
        if self.ops.tape:
            self.ops.tape.keep(Tensor(y.plain().copy(), y.format))
        return y


@fault("https://github.com/modelscope/ms-swift/pull/1677", "cost.accumulation-bytes", "accumulation.bytes-flat-in-k")
class WindowIsOneGraph(ReferenceTrainer):
    """What the micro-batches of a window hold is given back at its end alone."""

    def bytes_of_pass(self, parameters: Parameters, batch: Batch) -> int:
        return (1 + self.window.micro_batches) * super().bytes_of_pass(parameters, batch)


@fault("https://github.com/pytorch/pytorch/issues/154642", "cost.bytes-repeat")
class EarlierStepsHeld(ReferenceTrainer):
    """A cycle of references holds the activations of every earlier step."""

    def bytes_of_pass(self, parameters: Parameters, batch: Batch) -> int:
        return (1 + self.steps) * super().bytes_of_pass(parameters, batch)
