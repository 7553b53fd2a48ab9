"""Faults of layers, which a failure must name, and traces of a pass that differ from the pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.layers import Activation
from fixtures.model import Batch
from frameworks.contract import LayerTrace, Values
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.functions import ReferenceFunction
from frameworks.reference.core.tensor import Tensor, plain
from frameworks.reference.shipped.operations_and_layers import ReferenceFunctions, ReferenceShipped
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/keras-team/keras-hub/issues/642", "autocast.float32-parity", names="(LayerNorm), output")
class LayerNormWithAnotherEpsilon(Operations):
    """Layer norm adds a hundred times the epsilon that it is given."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        return super().layer_norm(x, scale, shift, 100.0 * epsilon)


@fault(
    "https://github.com/lucidrains/vit-pytorch/issues/65", "autocast.float32-parity", names="(SelfAttention), output"
)
class AttentionScaledByAnotherWidth(Operations):
    """Attention divides its scores by the root of one more than a head's width."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        width = query.shape[-1]
        return super().attention(replace(query, value=query.value * np.sqrt(width / (width + 1.0))), key, value)


@primitive
def _turned_backwards(weight: Array) -> Array:
    """The weight (size, size, C, F) as it is; the gradient that comes back has its first two axes exchanged."""
    return weight


defvjp(_turned_backwards, lambda _ans, _weight: lambda gradient: np.swapaxes(gradient, 0, 1))


@fault(
    "https://github.com/nntrainer/nntrainer/issues/705",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientHasItsSidesExchanged(Operations):
    """The gradient of a convolution's filters has height and width exchanged."""

    def convolution(self, x: Tensor, weight: Tensor, *given: Any) -> Tensor:
        return super().convolution(x, replace(weight, value=_turned_backwards(weight.value)), *given)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/2014", "autocast.dropout-scales-what-it-keeps")
class DropoutComparesBytes(ReferenceTrainer):
    """Random bytes decide what is dropped, which cuts the rate to 1/256; kept values are divided by the exact share."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        return super().draw_mask(shape, math.floor(256.0 * rate) / 256.0)


@fault("https://github.com/tensorflow/tensorflow/issues/28090", "accumulation.repeated-rows")
class RepeatedRowsCountOnce(Operations):
    """Of a row that a batch uses several times, only the last use gives a gradient."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        flat = ids.value.reshape(-1)
        last = {int(row): place for place, row in enumerate(flat)}
        counts = np.array([last[int(row)] == place for place, row in enumerate(flat)]).reshape(ids.value.shape)

        def rows(i: Array, t: Any, _: Any) -> Any:
            return anp.where(counts[..., None], t[i], plain(t)[i])

        return self.apply("embedding", rows, ids, table)


# traces


@fault("https://github.com/meta-pytorch/captum/issues/156", "composition.trace-is-the-pass")
class ShowsWhatTheActivationLeft(ReferenceTrainer):
    """A layer's output is shown as the activation behind it leaves it."""

    def trace(self, batch: Batch) -> LayerTrace:
        trace = super().trace(batch)
        layers = list(enumerate(self.model.layers))
        behind = {str(i): str(i - 1) for i, layer in layers if isinstance(layer, Activation)}
        overwritten = {before: trace.outputs[path] for path, before in behind.items()}
        return replace(trace, outputs=trace.outputs | overwritten)


@fault("https://github.com/wandb/wandb/issues/4369", "composition.trace-is-the-pass")
class ShowsScaledGradients(ReferenceTrainer):
    """Gradients with respect to layers' outputs are shown multiplied by the loss scale."""

    def trace(self, batch: Batch) -> LayerTrace:
        trace = super().trace(batch)
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return replace(trace, gradients={path: scale * gradient for path, gradient in trace.gradients.items()})


@fault("https://github.com/paiml/entrenar/issues/314", "composition.shared-weights")
class TiedHeadGivesNoGradient(Operations):
    """A table has the gradient of its rows alone, and not that of the head tied to it."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super().linear(x, weight if bias is not None else replace(weight, value=weight.plain()), bias)


@fault("https://github.com/pytorch/pytorch/issues/193279", "composition.user-function")
class UserBackwardPassIsDropped(Operations):
    """A function of the user's has the derivative of its forward pass as gradient."""

    def user_function(self, x: Tensor) -> Tensor:
        return self.apply("user_function", lambda a, _: a * a, x, keep="operands")


@fault("https://github.com/PaddlePaddle/Paddle/issues/62979", "composition.user-function")
class RecomputedFunctionsNeedNoGradient(ReferenceFunction):
    """A function of the user's that is recomputed finds that no input needs a gradient."""

    def needs(self, needs: tuple[bool, bool, bool], *, recomputed: bool) -> tuple[bool, bool, bool]:
        return (False, False, False) if recomputed else needs


@fault("https://github.com/karpathy/micrograd/issues/2", "composition.user-function")
class EarlierUsesCountAgain(ReferenceFunction):
    """Every use of a function of the user's passes on what the uses before it gave as well."""

    def added(self, gradients: list[Array]) -> Array:
        return super().added([place * gradient for place, gradient in enumerate(reversed(gradients), 1)])


@fault("https://github.com/pytorch/pytorch/issues/193671", "composition.shipped-parts")
class RecomputedNoiseIsNew(ReferenceShipped):
    """An operation that is recomputed draws other random numbers than in the forward pass."""

    @contextmanager
    def replayed(self) -> Iterator[None]:
        yield


@fault("https://github.com/PaddlePaddle/Paddle/issues/52836", "composition.shipped-parts")
class FirstInputAloneHasNoGradient(ReferenceShipped):
    """Where only one input of several has a gradient, it is that of the first input for all of them."""

    def of_each(self, function: Callable[..., Any], leaves: Sequence[Array]) -> Values:
        result = super().of_each(function, leaves)
        return dict.fromkeys(result, result["gradient/0"])


@fault("https://github.com/PaddlePaddle/Paddle/issues/79630", "composition.shipped-gradients")
class ActivationOverflowsFarFromZero(ReferenceShipped):
    """The gradient of an activation is computed by an exponential that overflows."""

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        value, *gradients = super().at(name, *points)
        if points[0].dtype == np.float32:
            gradients[0][np.abs(points[0]) > 88.0] = np.nan
        return value, *gradients


@fault("https://github.com/pytorch/pytorch/issues/195075", "composition.shipped-gradients")
class RestOfAVectorHasAnotherGradient(ReferenceShipped):
    """The last elements of an array, which fill no vector of the processor, have a gradient of 0."""

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        value, *gradients = super().at(name, *points)
        gradients[0][len(points[0]) // 8 * 8 :] = 0.0
        return value, *gradients


@fault("https://github.com/tensorflow/tensorflow/issues/119476", "composition.shipped-gradients")
class GradientIsMaskedAtZero(ReferenceShipped):
    """The gradient of a product by its first factor is 0 where that factor is 0."""

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        value, *gradients = super().at(name, *points)
        if len(points) == 2:
            gradients[0][points[0] == 0.0] = 0.0
        return value, *gradients


@fault("https://github.com/PaddlePaddle/Paddle/issues/79146", "composition.control-flow")
class RecomputedLoopEndsEarlier(ReferenceFunctions):
    """A loop that is recomputed makes one step fewer than in the forward pass."""

    @contextmanager
    def replayed(self) -> Iterator[None]:
        self.steps -= 1
        try:
            with super().replayed():
                yield
        finally:
            self.steps += 1
