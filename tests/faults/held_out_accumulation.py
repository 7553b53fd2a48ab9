"""Held-out faults of accumulation: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive
from autograd.tracer import isbox

from fixtures.arrays import Array
from fixtures.model import Batch, dense_weights
from frameworks.reference import checkpoint, scope
from frameworks.reference.arithmetic import UNARY, Operations, Round
from frameworks.reference.decisions import Arrays
from frameworks.reference.network import Pass
from frameworks.reference.products import largest
from frameworks.reference.tensor import Tensor, plain
from frameworks.reference.trace import TracedTensors
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@fault("", component="accumulator", clauses=("accumulation.bytes-flat-in-k",))
class EarlierMicroBatchesHeld(ReferenceTrainer):
    """What a micro-batch keeps for backward is not let go before the window ends, so later ones hold that too."""

    def saved_bytes(self, batch: Batch) -> int:
        return super().saved_bytes(batch) * (1 + self.window.micro_batches)


@fault(
    "https://github.com/fartashf/vsepp/issues/4",
    component="evaluation",
    clauses=("accumulation.evaluation-changes-nothing",),
)
class WindowEndsInEvaluationMode(ReferenceTrainer):
    """An evaluation inside a window leaves the layers in evaluation mode until the next window begins."""

    left = False

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        self.left = bool(self.window.micro_batches)
        return outputs

    def accumulate(self, batch: Batch, items: int) -> float:
        self.left = self.left and bool(self.window.micro_batches)
        return super().accumulate(batch, items)

    def _pass(self, parameters: Any, training: bool) -> Pass:
        return super()._pass(parameters, training and not self.left)


@fault("", component="accumulator", clauses=("accumulation.nothing-before-boundary",))
class LookingBacksOff(ReferenceTrainer):
    """Gradients that are only asked for, or shown by a trace, make the scale back off if they are not finite."""

    def gradients(self, window):
        asked = super().gradients(window)
        if self.scaler is not None and not all(np.isfinite(g.astype(np.float64)).all() for g in asked.values()):
            self.scaler = self.next_scale(self.scaler, False)
        return asked


@fault(
    "https://github.com/EricLBuehler/mistral.rs/pull/1867",
    component="accumulator",
    clauses=("accumulation.evaluation-changes-nothing",),
)
class EvaluationGeluByTanh(ReferenceTrainer):
    """Evaluation runs a fused GELU that is the approximation by tanh, training the exact one."""

    def evaluate(self, parameters, inputs):
        exact = UNARY["gelu"]
        UNARY["gelu"] = lambda x: 0.5 * x * (1.0 + anp.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x * x * x)))
        try:
            return super().evaluate(parameters, inputs)
        finally:
            UNARY["gelu"] = exact


@primitive
def _tied(x, size):
    return largest(x, size)


def _tied_x(ans, x, size):
    def spread(array):
        return np.repeat(np.repeat(array, size, axis=1), size, axis=2)

    return lambda g: np.where(x == spread(ans), spread(g), 0.0)


defvjp(_tied, _tied_x, None)


@fault(
    "https://github.com/tensorflow/tensorflow/issues/4886",
    component="accumulator",
    clauses=("accumulation.nothing-before-boundary",),
)
class PoolTiesAllWin(Operations):
    """Every one of several equal largest values in a pooling square gets the whole gradient."""

    def max_pool(self, x, size):
        self._keep_bytes(int(np.prod(x.shape)) // size**2)
        return self.apply("max_pool", lambda a, _: _tied(a, size), x)


@fault("", component="accumulator", clauses=("accumulation.weighs-items",))
class OneUnitStaysWide(Operations):
    """A dense layer of one unit is a product with a vector, which autocast does not know: only its result is cast."""

    def linear(self, x, weight, bias):
        if weight.shape[-1] != 1:
            return super().linear(x, weight, bias)
        _, yielding = self.formats("linear", x.format, weight.format)
        with scope.opened(scope.Scope()):
            result = super().linear(x, weight, bias)
        return self.cast(result, yielding)


@fault(
    "https://github.com/pytorch/pytorch/issues/84053",
    component="evaluation",
    clauses=("accumulation.evaluation-changes-nothing",),
)
class AverageKeepsFirstStatistics(ReferenceTrainer):
    """Evaluation with the average normalises by the running statistics that the run began with."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        held = self.statistics
        self.statistics = {name: value.astype(np.float64) for name, value in self.model.buffers().items()}
        try:
            return super().predict_averaged(inputs)
        finally:
            self.statistics = held


@fault(
    "https://github.com/tenstorrent/tt-metal/issues/54867",
    component="accumulator",
    clauses=("accumulation.clips-only-what-is-larger",),
)
class GeluSlopeSaturates(Operations):
    """In float32 the slope of gelu is taken to be 1 from 3.1719 on, which holds to bfloat16's precision only."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind != "gelu" or self.formats("gelu", x.format)[0] != "float32" or not isbox(x.value):
            return super().activation(kind, x)

        def gelu(a: Any, _: Round) -> Any:
            y = UNARY["gelu"](a)
            return anp.where(plain(a) >= 3.1719, a + plain(y - a), y)

        return self.apply("gelu", gelu, x, keep="operands")


@fault(
    "https://github.com/Dao-AILab/flash-attention/issues/314",
    component="accumulator",
    clauses=("accumulation.fresh-dropout",),
)
class SequenceDropoutStandsStill(ReferenceTrainer):
    """Dropout on sequences reads the random stream without moving it, so that the next dropout draws the same mask."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        mask = super().draw_mask(shape, rate)
        if len(shape) == 3:
            self.draws -= 1
        return mask


@fault("", component="accumulator", clauses=("accumulation.bytes-flat-in-k",))
class AccumulatorCountsAsSaved(ReferenceTrainer):
    """Inside a window the bytes held for backward include the accumulator's."""

    def saved_bytes(self, batch: Any) -> int:
        return super().saved_bytes(batch) + sum(held.nbytes for held in self.accumulator().values())


class _Latest(TracedTensors):
    """Keeps the gradient that came last."""

    def take_gradient(self, path: str, gradient: Array) -> None:
        self.gradients[path] = gradient


@fault("", component="accumulator", clauses=("accumulation.nothing-before-boundary",))
class TraceShowsTheLastLoss(ReferenceTrainer):
    """Of two losses with a backward pass each, a trace shows the second one's gradients for the layers they share."""

    def passing(self, path: str, output: Tensor) -> Tensor:
        if self.shown is not None and not isinstance(self.shown, _Latest):
            self.shown.__class__ = _Latest
        return super().passing(path, output)


@primitive
def _cubed(x: Array) -> Array:
    return x


defvjp(_cubed, lambda _ans, x: lambda g: np.where(np.abs(x) ** 3 > 65504.0, np.nan, g))


@fault(
    "https://github.com/facebookresearch/fairseq/issues/2235",
    component="accumulator",
    clauses=("accumulation.clips-only-what-is-larger",),
)
class CubeOverflow(Operations):
    """The backward pass of GELU cubes its input in float16, so that an input above 40 has a gradient of NaN."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind == "gelu" and self.formats(kind, x.format)[0] == "float16":
            x = Tensor(_cubed(x.value), x.format, x.owned)
        return super().activation(kind, x)


@fault("", component="normalisation", clauses=("accumulation.weighs-items",))
class ScaledInFloat32(ReferenceTrainer):
    """Under a loss scale the loss becomes float32 before it is averaged: a float64 head keeps float32's digits."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        narrow = loss if self.scaler is None else self.ops.cast(loss, "float32")
        return super().normalise(narrow, batch_items, window_items)


@fault(
    "https://github.com/chainer/chainer/pull/4505",
    component="accumulator",
    clauses=("accumulation.evaluation-changes-nothing",),
)
class BatchNormAddsEpsilonTwice(Operations):
    """In evaluation batch norm adds its epsilon to the running variance twice."""

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        return super().batch_norm(x, scale, shift, epsilon if given is None else 2.0 * epsilon, given)


@fault("", component="accumulator", clauses=("accumulation.each-counts-once",))
class SavesIntoTheFormerSave(ReferenceTrainer):
    """A save over an earlier one of the same run keeps the arrays that the new one lacks, so that the gradients of a
    window that was open then come back with the load and are added to the next window."""

    def save(self, path: Path) -> None:
        try:
            former = checkpoint.read(path, self._identity(), {})
        except ValueError:
            former = {}
        checkpoint.write(path, former | self.save_state(), self._identity())


@fault(
    "https://github.com/X-GenGroup/Flow-Factory/pull/186",
    component="normalisation",
    clauses=("accumulation.evaluation-changes-nothing",),
)
class CastsOutliveASwapOfWeights(ReferenceTrainer):
    """At O1 evaluations between two updates share the casts of dense weights, also where averaged weights are used."""

    casts: Mapping[str, Tensor] | None = None

    def _evaluated(self, parameters: dict[str, Tensor], inputs: Array) -> Arrays:
        if self.recipe.precision.level == "O1" and self.recipe.quantization is None:
            if self.casts is None:
                self.casts = {name: parameters[name] for name in dense_weights(self.model)}
            parameters = {**parameters, **self.casts}
        return super()._evaluated(parameters, inputs)

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self.casts = None
        super().apply_update(gradients, rate)

    def load_state(self, arrays: Arrays) -> None:
        self.casts = None
        super().load_state(arrays)
