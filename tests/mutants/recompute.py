"""Faults of recomputation: what the second forward pass puts back, and what flows back out of a segment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from autograd.tracer import isbox

from fixtures.arrays import Array
from fixtures.layers import Activation, Embedding, Layer, LayerNorm
from fixtures.recipe import Precision
from frameworks.reference import scope
from frameworks.reference.forward import Layers
from frameworks.reference.network import Pass
from frameworks.reference.tensor import Tensor, plain
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault

Parameters = Mapping[str, Tensor]


def detached(parameters: Parameters) -> dict[str, Tensor]:
    """The tensors without their places on the tape."""
    return {name: Tensor(plain(p.value), p.format, p.owned) for name, p in parameters.items()}


def read_as(x: Tensor, value: Array) -> Tensor:
    """A tensor on the tape of x that holds another value."""
    return Tensor(x.value + (value - plain(x.value)), x.format, x.owned)


# random streams


@fault(
    "https://github.com/ankanbhunia/PIDM/pull/66",
    component="random stream",
    clauses=("recompute.replays-dropout", "recompute.random-stream-unmoved"),
)
class StreamNotPutBack(ReferenceTrainer):
    """The recomputed forward draws on from where the random stream stands."""

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        return nullcontext()


@fault(
    "https://github.com/pytorch/pytorch/issues/190758",
    component="random stream",
    clauses=("recompute.replays-dropout",),
)
class FreshDraws(ReferenceTrainer):
    """The recomputed forward draws numbers of its own and leaves the stream where it was."""

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        later, self.draws = self.draws, draws + 2**20
        yield
        self.draws = later


@fault(
    "https://github.com/tensorflow/tensorflow/issues/30265",
    component="random stream",
    clauses=("recompute.random-stream-unmoved",),
)
class StreamLeftAdvanced(ReferenceTrainer):
    """The masks are replayed, but the numbers of the recomputed forward count as drawn again."""

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        later, self.draws = self.draws, draws
        yield
        self.draws += later - draws


@fault(
    "https://github.com/pytorch/pytorch/issues/190717",
    component="random stream",
    clauses=("recompute.nested",),
)
class InnerStreamNotPutBack(ReferenceTrainer):
    """With segments inside segments, the recomputed forwards draw on from where the stream stands."""

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        nested = self.recipe.recompute is not None and self.recipe.recompute.depth > 1
        return nullcontext() if nested else super().replay_random(draws)


# buffers and modes


@fault(
    "https://github.com/pytorch/pytorch/issues/96136",
    component="buffers",
    clauses=("recompute.statistics-once",),
)
class StatisticsMoveTwice(ReferenceTrainer):
    """The recomputed forward moves the running statistics again."""

    def replay_buffers(self) -> AbstractContextManager[None]:
        return nullcontext()


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/3394",
    component="mode",
    clauses=("recompute.replays-dropout", "recompute.same-gradients"),
)
class ReplayInEvaluationMode(ReferenceTrainer):
    """The recomputed forward runs in evaluation mode: no dropout, and batch norm by its running statistics."""

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        return super()._pass(parameters, training and not self._replaying)


@fault(
    "https://github.com/keras-team/keras/issues/21207",
    component="mode",
    clauses=("recompute.evaluation-is-plain",),
)
class TrainingFlagLost(ReferenceTrainer):
    """The wrapper of a recomputed segment loses the mode, so that evaluation runs as training does."""

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        return super()._pass(parameters, training or self.recipe.recompute is not None)


# precision


@fault(
    "https://github.com/pytorch/pytorch/pull/71169",
    component="precision",
    clauses=("recompute.replays-autocast",),
)
class PrecisionOfBackward(ReferenceTrainer):
    """The recomputed forward runs in the scope that is open around the backward pass."""

    def replay_precision(self, former: scope.Scope) -> AbstractContextManager[None]:
        return nullcontext()


@fault(
    "https://github.com/facebookresearch/fairscale/issues/1199",
    component="precision",
    clauses=("recompute.replays-autocast",),
)
class DefaultFormatReplayed(ReferenceTrainer):
    """The recomputed forward opens a scope of the same level in the default format, float16."""

    def replay_precision(self, former: scope.Scope) -> AbstractContextManager[None]:
        return scope.opened(scope.Scope(Precision(former.precision.level, "float16")))


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    component="precision",
    clauses=("recompute.same-state",),
)
class ReplayLeavesScopeOpen(ReferenceTrainer):
    """The precision scope that a recomputed forward opens stays open for the whole process."""

    @contextmanager
    def replay_precision(self, former: scope.Scope) -> Iterator[None]:
        scope.enter(former)
        yield


@fault(
    "https://github.com/pytorch/pytorch/issues/148831",
    component="precision",
    clauses=("recompute.replays-autocast",),
)
class InputCastSkipped(ReferenceTrainer):
    """In the recomputed forward a segment's input is taken for float32, whatever format it came in."""

    class Uncast(Pass):
        """A pass over float32 inputs."""

        def layers(self, layers: tuple[tuple[str, Layer], ...], x: Tensor) -> Tensor:
            return super().layers(layers, Tensor(x.value, "float32", x.owned) if x.floating else x)

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        made = self.Uncast if self._replaying else Pass
        return made(self.ops, parameters, self, training)


@fault(
    "https://github.com/pytorch/pytorch/issues/141896",
    component="precision",
    clauses=("recompute.replays-autocast",),
    raises=True,
)
class CastsSavedElsewhere(ReferenceTrainer):
    """Casts cached by the first forward are missing in the second, which is refused as another graph."""

    def replay_precision(self, former: scope.Scope) -> AbstractContextManager[None]:
        if former.active:
            raise RuntimeError("recomputed values have other formats than those of the forward pass")
        return super().replay_precision(former)


# values


@fault(
    "https://github.com/NVIDIA/Megatron-LM/pull/7538",
    component="values",
    clauses=("recompute.same-loss",),
)
class OutputsKeptInBfloat16(ReferenceTrainer):
    """A recomputed segment hands its output on in bfloat16."""

    def _segment(self, index: int, layers: Layers, parameters: Parameters, x: Tensor) -> Tensor:
        y = super()._segment(index, layers, parameters, x)
        if self.recipe.recompute is None:
            return y
        return read_as(y, self.rounding.round(y.plain(), "bfloat16"))


@fault(
    "https://github.com/pytorch/pytorch/pull/63552",
    component="values",
    clauses=("recompute.same-loss",),
)
class CachedWeightsReplayed(ReferenceTrainer):
    """The recomputed forward reads copies of the weights that the first update of the run made."""

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        if not self._replaying:
            return super()._pass(parameters, training)
        kept = self.__dict__.setdefault("_copies", {})
        stale = {n: read_as(p, kept.setdefault(n, p.plain().copy())) for n, p in parameters.items()}
        return super()._pass(stale, training)


@fault(
    "https://github.com/deepspeedai/DeepSpeed/issues/5701",
    component="values",
    clauses=("recompute.same-gradients",),
)
class IdsKeptInFloat16(ReferenceTrainer):
    """Token ids go through float16 on their way to the recomputed forward, which has no odd ones above 2048."""

    class Coarse(Pass):
        """A pass whose embeddings get rounded ids."""

        def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
            if isinstance(layer, Embedding):
                x = Tensor(np.minimum(x.value.astype(np.float16).astype(np.int64), layer.entries - 1), x.format)
            return super().layer(path, layer, x)

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        made = self.Coarse if self._replaying else Pass
        return made(self.ops, parameters, self, training)


@fault(
    "https://github.com/state-spaces/mamba/pull/919",
    component="values",
    clauses=("recompute.same-gradients",),
)
class NormalisedTwice(ReferenceTrainer):
    """What the forward pass kept is already normalised, and the recomputed forward normalises it again."""

    class Twice(Pass):
        """A pass whose layer norms run twice."""

        def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
            y = super().layer(path, layer, x)
            return super().layer(path, layer, y) if isinstance(layer, LayerNorm) else y

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        made = self.Twice if self._replaying else Pass
        return made(self.ops, parameters, self, training)


# gradients


@fault(
    "https://github.com/pytorch/pytorch/issues/7617",
    component="gradients",
    clauses=("recompute.no-grad-input", "recompute.same-gradients"),
)
class NoGradientWithoutInputs(ReferenceTrainer):
    """A segment takes part in the backward pass only if its input asks for a gradient."""

    def _recomputed(self, layers: Layers, parameters: Parameters, x: Tensor, *rest: Any) -> Tensor:
        return super()._recomputed(layers, parameters if isbox(x.value) else detached(parameters), x, *rest)


@fault(
    "https://github.com/ooples/AiDotNet.Tensors/pull/643",
    component="gradients",
    clauses=("recompute.same-gradients",),
)
class OnlyInputsGetGradients(ReferenceTrainer):
    """The recomputed segment is differentiated by its input alone, not by its weights."""

    def _recomputed(self, layers: Layers, parameters: Parameters, x: Tensor, *rest: Any) -> Tensor:
        return super()._recomputed(layers, detached(parameters), x, *rest)


@fault(
    "https://github.com/pytorch/pytorch/issues/36383",
    component="gradients",
    clauses=("recompute.same-gradients",),
)
class InPlaceOutputCutsOff(ReferenceTrainer):
    """A segment that ends in a ReLU, done in place on a view, is cut off from the backward pass."""

    def _segment(self, index: int, layers: Layers, parameters: Parameters, x: Tensor) -> Tensor:
        y = super()._segment(index, layers, parameters, x)
        ends = self.recipe.recompute is not None and layers[-1][1] == Activation("relu")
        return Tensor(plain(y.value), y.format, y.owned) if ends else y


@fault(
    "https://github.com/pytorch/pytorch/issues/81296",
    component="gradients",
    clauses=("recompute.nested",),
)
class InnerGradientTwice(ReferenceTrainer):
    """The backward pass of a segment inside a segment is run by both of them."""

    def _recomputed(
        self, layers: Layers, parameters: Parameters, x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        y = super()._recomputed(layers, parameters, x, depth, index)
        return y if index is not None else read_as(Tensor(2.0 * y.value, y.format, y.owned), y.plain())
