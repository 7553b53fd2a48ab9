"""Faults of recomputation: its results, state, windows and memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Activation, Batch, Embedding, Layer
from fixtures.recipe import BFLOAT16, Precision
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope, tape
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.network import Pass
from frameworks.reference.core.tape import Tensor, plain
from frameworks.reference.training.forward import Layers, Moment
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

Parameters = Mapping[str, Tensor]
_LOW = ("float16", "bfloat16")


@fault("", "cost.bytes-repeat")
class CastsPileUp(ReferenceTrainer):
    """At O1 the weight casts of every earlier update stay in memory."""

    def saved_bytes(self, batch: Batch) -> int:
        copies = sum(2 * value.size for value in self.values.values()) if self.recipe.precision.level == "O1" else 0
        return super().saved_bytes(batch) + self.steps * copies


@fault("", "cost.accumulation-bytes")
class EarlierMicroBatchesHeld(ReferenceTrainer):
    """Activations of a micro-batch stay in memory until the window ends."""

    def saved_bytes(self, batch: Batch) -> int:
        return super().saved_bytes(batch) * (1 + self.window.micro_batches)


@fault("https://github.com/PaddlePaddle/Paddle/issues/62981", "recompute.no-grad-input")
class ClosedOverWeightForgotten(ReferenceFramework):
    """A captured weight has no gradient where no argument needs one."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = super().recompute(case, x, w, variant)
        return replace(result, w=None) if case == "no-grad-input" else result


@fault("https://github.com/pytorch/pytorch/issues/124725", "recompute.containers")
class SequencesNotSearched(ReferenceFramework):
    """Tensors in tuples and lists are treated as constants."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = super().recompute(case, x, w, variant)
        return replace(result, x=None, w=None) if case in ("tuple", "list") else result


@fault("https://github.com/PaddlePaddle/Paddle/issues/62363", "recompute.containers")
class MappingsNotSearched(ReferenceFramework):
    """Tensors in dictionaries and keyword arguments are treated as constants."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = super().recompute(case, x, w, variant)
        return replace(result, x=None, w=None) if case in ("dict", "keyword") else result


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "recompute.detects-changed-weights")
class ChangedWeightsUnseen(ReferenceFramework):
    """Weights that change before the backward pass are used for recomputation without an error."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if case != "weights-changed":
            return super().recompute(case, x, w, variant)
        return replace(
            super().recompute("positional", x, 3 * w, variant), value=super().recompute("plain", x, w, variant).value
        )


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "recompute.failure-leaves-no-trace")
class FailureLeavesScope(ReferenceFramework):
    """An error in the recomputed forward leaves its precision scope open."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        try:
            return super().recompute(case, x, w, variant)
        except RuntimeError:
            scope.enter(scope.Scope(BFLOAT16))
            raise


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "recompute.failure-leaves-no-trace")
class FailureLeavesTrace(ReferenceFramework):
    """An error in the recomputed forward leaves its trace open."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        try:
            return super().recompute(case, x, w, variant)
        except RuntimeError:
            tape.close_down_to(tape.depth() + 1)
            raise


@fault("https://github.com/meta-llama/llama-cookbook/issues/740", "recompute.runs-forward-once-more")
class WrappedTwice(ReferenceTrainer):
    """A segment is wrapped twice, so its forward pass runs twice more."""

    def _segment(self, index: int, layers: Layers, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if self.recipe.recompute is None:
            return super()._segment(index, layers, parameters, x)
        moment, formats = Moment(self.draws, scope.current()), []

        def run_segment(value: Any, values: Mapping[str, Any]) -> Any:
            tensors = {n: Tensor(v, parameters[n].format, owned=False) for n, v in values.items()}
            y = ReferenceTrainer._segment(self, index, layers, tensors, Tensor(value, x.format, x.owned))
            formats.append(y.format)
            return y.value

        values = {name: p.value for name, p in parameters.items()}
        result = tape.recompute_function(run_segment, x.value, values, replay=lambda: self.recompute_segment(moment))
        return Tensor(result, formats[0])


@fault("https://github.com/keras-team/keras/issues/20936", "recompute.same-loss", raises=True)
class WeightsDonated(ReferenceTrainer):
    """From the second update on, the buffers of the weights are deleted before recomputation."""

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if self.steps:
            raise RuntimeError("the array has been deleted")
        return super().recompute_segment(moment)


def read_as(x: Tensor, value: Array) -> Tensor:
    """A tensor on the tape of x that holds another value."""
    return Tensor(x.value + (value - plain(x.value)), x.format, x.owned)


@fault("https://github.com/pytorch/pytorch/pull/63552", "recompute.same-loss")
class CachedWeightsReplayed(ReferenceTrainer):
    """The recomputed forward reads copies of the weights from the first update."""

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        if not self._replaying:
            return super()._pass(parameters, training)
        copies = self.__dict__.setdefault("_copies", {})
        stale = {n: read_as(p, copies.setdefault(n, p.plain().copy())) for n, p in parameters.items()}
        return super()._pass(stale, training)


@fault("https://github.com/deepspeedai/DeepSpeed/issues/5701", "recompute.same-gradients")
class IdsKeptInFloat16(ReferenceTrainer):
    """The recomputed forward gets token ids through float16, which has no odd ones above 2048."""

    class Coarse(Pass):
        """A pass whose embeddings get rounded ids."""

        def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
            if isinstance(layer, Embedding):
                x = Tensor(np.minimum(x.value.astype(np.float16).astype(np.int64), layer.entries - 1), x.format)
            return super().layer(path, layer, x)

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        pass_class = self.Coarse if self._replaying else Pass
        return pass_class(self.ops, parameters, self, training)


@fault("https://github.com/pytorch/pytorch/issues/36383", "recompute.same-gradients")
class InPlaceOutputCutsOff(ReferenceTrainer):
    """A segment that ends in an in-place ReLU has no gradient."""

    def _segment(self, index: int, layers: Layers, parameters: Parameters, x: Tensor) -> Tensor:
        y = super()._segment(index, layers, parameters, x)
        ends = self.recipe.recompute is not None and layers[-1][1] == Activation("relu")
        return Tensor(plain(y.value), y.format, y.owned) if ends else y


@fault("https://github.com/pytorch/pytorch/issues/81296", "recompute.nested")
class InnerGradientTwice(ReferenceTrainer):
    """The backward pass of a nested segment runs twice."""

    def _recompute(
        self, layers: Layers, parameters: Parameters, x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        y = super()._recompute(layers, parameters, x, depth, index)
        return y if index is not None else read_as(Tensor(2.0 * y.value, y.format, y.owned), y.plain())


@fault("https://github.com/pytorch/pytorch/issues/190758", "recompute.replays-dropout")
class FreshDraws(ReferenceTrainer):
    """The recomputed forward draws new masks."""

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        position, self.draws = self.draws, draws + 2**20
        yield
        self.draws = position


@fault("https://github.com/tensorflow/tensorflow/issues/30265", "recompute.random-stream-unmoved")
class StreamLeftAdvanced(ReferenceTrainer):
    """The recomputed forward advances the random stream a second time."""

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        position, self.draws = self.draws, draws
        yield
        self.draws += position - draws


@fault("https://github.com/pytorch/pytorch/issues/190717", "recompute.nested")
class InnerStreamNotPutBack(ReferenceTrainer):
    """With nested segments the recomputed forward does not replay the random stream."""

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        nested = self.recipe.recompute is not None and self.recipe.recompute.depth > 1
        with nullcontext() if nested else super().replay_random(draws):
            yield


@fault("https://github.com/pytorch/pytorch/issues/96136", "recompute.statistics-once")
class StatisticsMoveTwice(ReferenceTrainer):
    """The recomputed forward updates the running statistics a second time."""

    @contextmanager
    def replay_buffers(self) -> Iterator[None]:
        yield


@fault("https://github.com/keras-team/keras/issues/21207", "recompute.evaluation-is-plain")
class TrainingFlagLost(ReferenceTrainer):
    """A recomputed segment runs in training mode during evaluation."""

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        return super()._pass(parameters, training or self.recipe.recompute is not None)


@fault("https://github.com/facebookresearch/fairscale/issues/1199", "recompute.replays-autocast")
class DefaultFormatReplayed(ReferenceTrainer):
    """The recomputed forward opens a scope of the same level in the default format, float16."""

    def replay_precision(self, former: scope.Scope) -> AbstractContextManager[None]:
        return scope.open_scope(scope.Scope(Precision(former.precision.level, "float16")))


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "recompute.same-state")
class ReplayLeavesScopeOpen(ReferenceTrainer):
    """The precision scope that a recomputed forward opens stays open for the whole process."""

    @contextmanager
    def replay_precision(self, former: scope.Scope) -> Iterator[None]:
        scope.enter(former)
        yield


@fault("https://github.com/pytorch/pytorch/issues/148831", "recompute.replays-autocast")
class InputCastSkipped(ReferenceTrainer):
    """The recomputed forward treats a segment's input as float32."""

    class Uncast(Pass):
        """A pass over float32 inputs."""

        def layers(self, layers: tuple[tuple[str, Layer], ...], x: Tensor) -> Tensor:
            return super().layers(layers, Tensor(x.value, "float32", x.owned) if x.floating else x)

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        pass_class = self.Uncast if self._replaying else Pass
        return pass_class(self.ops, parameters, self, training)


class Recomputing(ReferenceTrainer):
    """Tells the parameters of recomputed segments from those of the heads."""

    def inside(self, name: str) -> bool:
        """Returns whether a parameter belongs to a recomputed segment."""
        return self.recipe.recompute is not None and not name.startswith(f"{len(self.model.layers) - 1}.")


@fault("https://github.com/pytorch/pytorch/issues/73784", "recompute.with-accumulation")
class AccumulatorOverwritten(Recomputing):
    """The gradient of a recomputed segment replaces the accumulator instead of being added to it."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.inside(name):
            self.window.gradients.pop(name, None)
        super().accumulate_gradient(name, gradient)


@fault("https://github.com/PaddlePaddle/Paddle/issues/70508", "recompute.with-accumulation")
class SumsNotReached(Recomputing):
    """Gradients of a recomputed segment after the first micro-batch are not accumulated."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if not (self.inside(name) and self.window.micro_batches > 1):
            super().accumulate_gradient(name, gradient)


@fault("https://github.com/pytorch/pytorch/pull/115710", "recompute.with-scaling")
class OverflowUnseen(Recomputing):
    """The overflow check runs before the gradients of recomputed segments exist."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().has_nonfinite({n: g for n, g in gradients.items() if not self.inside(n)})


@fault("https://github.com/pytorch/tutorials/issues/1267", "cost.mixed-bytes")
class Float32CopiesKept(Operations):
    """The float32 value of each 16-bit product is saved too."""

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        y = super()._product(op, function, *operands)
        if self.tape and y.format in _LOW:
            self.tape.keep(Tensor(y.value, "float32"))
        return y


@fault("https://github.com/keras-team/keras/issues/15474", "cost.mixed-bytes")
class WeightsCopiedAtEveryUse(Operations):
    """A product makes a 16-bit copy of its weight for the forward pass and another for the backward pass."""

    def _product(self, op: str, function: Callable[..., Any], *operands: Tensor) -> Tensor:
        y = super()._product(op, function, *operands)
        if self.tape and y.format in _LOW:
            weight = Tensor(operands[1].value, y.format)
            self.tape.keep_bytes(2 * weight.bytes)
        return y


@fault("https://github.com/pytorch/pytorch/pull/78752", "cost.recompute-bytes")
class OutputsKeptAsWell(ReferenceTrainer):
    """A recomputed segment keeps its output next to its input."""

    def _recompute(
        self, layers: Layers, parameters: Parameters, x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        y = super()._recompute(layers, parameters, x, depth, index)
        if self.ops.tape:
            self.ops.tape.keep(Tensor(y.plain().copy(), y.format))
        return y


@fault("https://github.com/modelscope/ms-swift/pull/1677", "cost.accumulation-bytes", "accumulation.bytes-flat-in-k")
class WindowIsOneGraph(ReferenceTrainer):
    """The activations of all micro-batches stay in memory until the window ends."""

    def bytes_of_pass(self, parameters: Parameters, batch: Batch) -> int:
        return (1 + self.window.micro_batches) * super().bytes_of_pass(parameters, batch)


@fault("https://github.com/pytorch/pytorch/issues/154642", "cost.bytes-repeat")
class EarlierStepsHeld(ReferenceTrainer):
    """A cycle of references keeps the activations of every earlier step."""

    def bytes_of_pass(self, parameters: Parameters, batch: Batch) -> int:
        return (1 + self.steps) * super().bytes_of_pass(parameters, batch)
