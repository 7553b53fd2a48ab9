"""Paddle's operations and layers with examples, and what techniques make of them."""

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.distributed.fleet.utils import recompute

from fixtures.arrays import Array
from frameworks.base.shipped import FACTOR, ListedParts, incoming
from frameworks.contract import Values
from frameworks.paddle.core.arrays import to_numpy

Call = Callable[[Callable[..., Any], Sequence[Any]], Any]
Tensors = Sequence[paddle.Tensor]

_LEAF = (paddle.float32, paddle.complex64)


def _plain(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return call(*arguments)


def _without_gradient(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    with paddle.no_grad():
        return call(*arguments)


def _recompute_call(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return recompute(call, *arguments, use_reentrant=False)


def _copied_values(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    with paddle.autograd.saved_tensors_hooks(to_numpy, paddle.to_tensor):
        return call(*arguments)


def _scope_off(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    with paddle.amp.auto_cast(enable=False):
        return call(*arguments)


_CALLS: Mapping[str, Call] = {
    "without-gradient": _without_gradient,
    "recomputed": _recompute_call,
    "saved-elsewhere": _copied_values,
    "scope-off": _scope_off,
}


def _leaf(value: Any) -> Any:
    """A tensor from an array, with a gradient where it is floating; anything else unchanged."""
    if isinstance(value, list):
        return [_leaf(item) for item in value]
    return paddle.to_tensor(value, stop_gradient=value.dtype.kind != "f") if isinstance(value, np.ndarray) else value


def _tensors(nest: Any) -> list[paddle.Tensor]:
    return [leaf for leaf in paddle.utils.flatten(nest) if isinstance(leaf, paddle.Tensor)]


class _Parts(ListedParts):
    """What operations and layers share."""

    file = Path(__file__).with_name("shipped.toml")
    own: tuple[str, ...]

    def techniques(self) -> tuple[str, ...]:
        return (*_CALLS, *self.own)

    def arguments(self, name: str) -> list[Any]:
        """The inputs of a part, new tensors each time."""
        return [_leaf(value) for value in self.inputs(name)]


def _values(call: Callable[..., Any], arguments: Sequence[Any], more: Tensors, technique: str) -> Values:
    paddle.seed(3)
    outputs = _tensors(_CALLS.get(technique, _plain)(call, arguments))
    values = {f"value/{index}": to_numpy(output) for index, output in enumerate(outputs)}
    followed = [output for output in outputs if not output.stop_gradient and output.dtype in _LEAF]
    if not followed:
        return values
    leaves = [*(tensor for tensor in _tensors(list(arguments)) if not tensor.stop_gradient), *more]
    gradients = _gradients(followed, leaves, technique)
    return values | {
        f"gradient/{index}": None if gradient is None else to_numpy(gradient)
        for index, gradient in enumerate(gradients)
    }


def _gradients(outputs: Tensors, leaves: Tensors, technique: str) -> Sequence[paddle.Tensor | None]:
    cotangents = [paddle.to_tensor(incoming(tuple(output.shape))).astype(output.dtype) for output in outputs]
    backward = partial(paddle.grad, outputs, leaves, allow_unused=True)
    match technique:
        case "recomputed":  # recomputation is a PyLayer, which `paddle.grad` does not run
            paddle.autograd.backward(list(outputs), cotangents)
            return [leaf.grad for leaf in leaves]
        case "used-twice":
            backward(cotangents, retain_graph=True)
        case "scaled":
            scaled = backward([cotangent * FACTOR for cotangent in cotangents])
            return [None if gradient is None else gradient / FACTOR for gradient in scaled]
    return backward(cotangents)


class Operations(_Parts):
    """Functions of paddle, paddle.linalg, paddle.fft and paddle.nn.functional."""

    part = "operations"
    module = paddle
    own = ("one-input", "used-twice", "scaled")

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        leaves = [paddle.to_tensor(point, stop_gradient=False) for point in points]
        value = self.of_arrays(name, len(points))(*leaves)
        gradients = paddle.grad([value], leaves, [paddle.ones_like(value)])
        return tuple(to_numpy(tensor) for tensor in (value, *gradients))

    def compute(self, name: str, technique: str) -> Values:
        call = self.find(name)
        if technique != "one-input":
            return _values(call, self.arguments(name), (), technique)
        leaves = [tensor for tensor in _tensors(self.arguments(name)) if not tensor.stop_gradient]
        return {f"gradient/{index}": self._of_one(call, name, index) for index in range(len(leaves))}

    def _of_one(self, call: Callable[..., Any], name: str, index: int) -> Any:
        """The gradient of one input while the others have none; of outputs that do not depend on it there is none."""
        arguments = self.arguments(name)
        leaves = [tensor for tensor in _tensors(arguments) if not tensor.stop_gradient]
        for other in leaves:
            other.stop_gradient = other is not leaves[index]
        return _values(call, arguments, (), "").get("gradient/0")


class Layers(_Parts):
    """Layers of paddle.nn in training."""

    part = "layers"
    module = paddle.nn
    own = ("copied", "loaded")

    def compute(self, name: str, technique: str) -> Values:
        layer = self._build(name, 1)
        if technique == "copied":
            layer = copy.deepcopy(layer)
        if technique == "loaded":
            file = io.BytesIO()
            paddle.save(layer.state_dict(), file)
            file.seek(0)
            layer = self._build(name, 5)
            layer.set_state_dict(paddle.load(file))
        trained = [parameter for parameter in layer.parameters() if not parameter.stop_gradient]
        result = _values(layer, self.arguments(name), trained, technique)
        if technique == "recomputed":
            return result
        return {**result, **{f"state/{index}": to_numpy(buffer) for index, buffer in enumerate(layer.buffers())}}

    def _build(self, name: str, seed: int) -> paddle.nn.Layer:
        paddle.seed(seed)
        layer = self.listed.build(self.find(name))
        layer.train()
        return layer
