"""Faults of the values that a recomputed segment computes, and of the gradients that flow back out of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from fixtures.layers import Activation, Embedding, Layer
from frameworks.reference.core.network import Pass
from frameworks.reference.core.tensor import Tensor, plain
from frameworks.reference.training.forward import Layers
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

Parameters = Mapping[str, Tensor]


# values


def read_as(x: Tensor, value: Array) -> Tensor:
    """A tensor on the tape of x that holds another value."""
    return Tensor(x.value + (value - plain(x.value)), x.format, x.owned)


@fault("https://github.com/pytorch/pytorch/pull/63552", "recompute.same-loss")
class CachedWeightsReplayed(ReferenceTrainer):
    """The recomputed forward reads copies of the weights that the first update of the run made."""

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        if not self._replaying:
            return super()._pass(parameters, training)
        copies = self.__dict__.setdefault("_copies", {})
        stale = {n: read_as(p, copies.setdefault(n, p.plain().copy())) for n, p in parameters.items()}
        return super()._pass(stale, training)


@fault("https://github.com/deepspeedai/DeepSpeed/issues/5701", "recompute.same-gradients")
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


# gradients


@fault("https://github.com/pytorch/pytorch/issues/36383", "recompute.same-gradients")
class InPlaceOutputCutsOff(ReferenceTrainer):
    """A segment that ends in a ReLU, done in place on a view, is cut off from the backward pass."""

    def _segment(self, index: int, layers: Layers, parameters: Parameters, x: Tensor) -> Tensor:
        y = super()._segment(index, layers, parameters, x)
        ends = self.recipe.recompute is not None and layers[-1][1] == Activation("relu")
        return Tensor(plain(y.value), y.format, y.owned) if ends else y


@fault("https://github.com/pytorch/pytorch/issues/81296", "recompute.nested")
class InnerGradientTwice(ReferenceTrainer):
    """The backward pass of a segment inside a segment is run by both of them."""

    def _recomputed(
        self, layers: Layers, parameters: Parameters, x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        y = super()._recomputed(layers, parameters, x, depth, index)
        return y if index is not None else read_as(Tensor(2.0 * y.value, y.format, y.owned), y.plain())
