"""Operations, layers and optimizers that Paddle ships, run on examples without and with techniques."""

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.distributed.fleet.utils import recompute

from fixtures.arrays import Array
from frameworks.base import shipped
from frameworks.base.shipped import (
    FACTOR,
    FROZEN,
    HALFWAY,
    RATE,
    ListedOptimizers,
    ListedParts,
    Options,
    gradients,
    incoming,
    infinite,
)
from frameworks.contract import Capability, Unsupported, Values
from frameworks.paddle.core.settings import to_numpy, to_tensor
from frameworks.paddle.training.optimizers import forced_scaler

Tensors = Sequence[paddle.Tensor]
Parameters = list[paddle.Tensor]

_DIFFERENTIATED = (paddle.float32, paddle.complex64)
"""Formats of the outputs that are differentiated."""
_SCOPES: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "without-gradient": paddle.no_grad,
    "saved-elsewhere": partial(paddle.autograd.saved_tensors_hooks, to_numpy, paddle.to_tensor),
    "scope-off": partial(paddle.amp.auto_cast, enable=False),
}
"""Contexts of the forward pass, by technique."""
_SCALE = 1024.0
"""Loss scale of the technique "scaled" of optimizers."""
_DECAYS = ("weight_decay", "lamb_weight_decay")  # arguments of optimizers
_SWITCHES = {"multi-precision": "multi_precision", "multi-tensor": "use_multi_tensor"}
"""Arguments of optimizers that a technique sets to True."""
name_arrays = partial(shipped.name_arrays, to_numpy)


def tensors_in(nest: Any) -> list[paddle.Tensor]:
    """The tensors in nested containers, in order."""
    return [leaf for leaf in paddle.utils.flatten(nest) if isinstance(leaf, paddle.Tensor)]


class _Parts(ListedParts):
    """Base of operations and layers.

    Attributes:
        own_techniques: techniques that only the subclass has.
    """

    file = Path(__file__).with_name("shipped.toml")
    own_techniques: tuple[str, ...]

    def techniques(self) -> tuple[str, ...]:
        return ("without-gradient", "recomputed", "saved-elsewhere", "scope-off", *self.own_techniques)

    def arguments(self, name: str) -> list[Any]:
        """The inputs of a part's example, as new tensors in each call."""
        return [_to_tensors(value) for value in self.inputs(name)]


def _to_tensors(value: Any) -> Any:
    """An array as a tensor, which needs a gradient if floating; lists item by item; other values unchanged."""
    if isinstance(value, list):
        return [_to_tensors(item) for item in value]
    return paddle.to_tensor(value, stop_gradient=value.dtype.kind != "f") if isinstance(value, np.ndarray) else value


def _run_and_differentiate(
    call: Callable[..., Any], arguments: Sequence[Any], weights: Tensors, technique: str
) -> Values:
    """The outputs of a call and, if any output is floating, the gradients for floating arguments and `weights`."""
    paddle.seed(3)
    with _SCOPES.get(technique, nullcontext)():
        if technique == "recomputed":
            outputs = tensors_in(recompute(call, *arguments, use_reentrant=False))
        else:
            outputs = tensors_in(call(*arguments))
    values = name_arrays("value", outputs)
    differentiated = [output for output in outputs if not output.stop_gradient and output.dtype in _DIFFERENTIATED]
    if not differentiated:
        return values
    leaves = [*(tensor for tensor in tensors_in(list(arguments)) if not tensor.stop_gradient), *weights]
    return values | name_arrays("gradient", _differentiate(differentiated, leaves, technique))


def _differentiate(outputs: Tensors, leaves: Tensors, technique: str) -> Sequence[paddle.Tensor | None]:
    """The gradient of each leaf, None for one that no output depends on."""
    cotangents = [paddle.to_tensor(incoming(tuple(output.shape))).astype(output.dtype) for output in outputs]
    backward = partial(paddle.grad, outputs, leaves, allow_unused=True)
    match technique:
        case "recomputed":  # `paddle.grad` does not run a PyLayer, which recomputation uses
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
    own_techniques = ("one-input", "used-twice", "scaled")

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        leaves = [paddle.to_tensor(point, stop_gradient=False) for point in points]
        value = self.of_arrays(name, len(points))(*leaves)
        slopes = paddle.grad([value], leaves, [paddle.ones_like(value)])
        return tuple(to_numpy(tensor) for tensor in (value, *slopes))

    def compute(self, name: str, technique: str) -> Values:
        call = self.find(name)
        if technique != "one-input":
            return _run_and_differentiate(call, self.arguments(name), (), technique)
        count = sum(not tensor.stop_gradient for tensor in tensors_in(self.arguments(name)))
        return {f"gradient/{index}": self._differentiate_one_input(call, name, index) for index in range(count)}

    def _differentiate_one_input(self, call: Callable[..., Any], name: str, index: int) -> Any:
        """The gradient of one floating input while no other needs a gradient; None if no output depends on it."""
        arguments = self.arguments(name)
        leaves = [tensor for tensor in tensors_in(arguments) if not tensor.stop_gradient]
        for leaf in leaves:
            leaf.stop_gradient = leaf is not leaves[index]
        return _run_and_differentiate(call, arguments, (), "").get("gradient/0")


class Layers(_Parts):
    """Layers of paddle.nn in training."""

    part = "layers"
    module = paddle.nn
    own_techniques = ("copied", "loaded")

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
        weights = [parameter for parameter in layer.parameters() if not parameter.stop_gradient]
        result = _run_and_differentiate(layer, self.arguments(name), weights, technique)
        if technique == "recomputed":  # the second forward pass updates statistics again
            return result
        return {**result, **name_arrays("state", layer.buffers())}

    def _build(self, name: str, seed: int) -> paddle.nn.Layer:
        paddle.seed(seed)
        layer = self.listed.build(self.find(name))
        layer.train()
        return layer


class PaddleOptimizers(ListedOptimizers):
    """Classes of paddle.optimizer in the dynamic graph.

    Args:
        forced: the scaler stays enabled on a CPU, where Paddle disables it.
    """

    file = Path(__file__).with_name("shipped.toml")
    module = paddle.optimizer

    def __init__(self, *, forced: bool) -> None:
        super().__init__()
        self.forced = forced

    def techniques(self) -> tuple[str, ...]:
        own = ("loaded", "grouped", "beside-frozen", "scheduled", "clipped-loosely", "minimized", *_SWITCHES)
        return ("scaled", *own) if self.forced else own

    def get_options_without_decay(self, name: str) -> Options:
        arguments = signature(self.find(name)).parameters
        return {decay: 0.0 for decay in _DECAYS if decay in arguments and arguments[decay].default}

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        parameters = _create_parameters(start)
        optimizer = self._make_optimizer(name, options, technique, parameters)
        with ExitStack() as open_scopes:
            open_scopes.enter_context(paddle.utils.unique_name.guard())
            if technique == "scaled":
                open_scopes.enter_context(forced_scaler())
            scaler = paddle.amp.GradScaler(init_loss_scaling=_SCALE, enable=technique == "scaled")
            for index, update in enumerate(gradients(start, technique)):
                if index == HALFWAY and technique == "loaded":
                    open_scopes.enter_context(paddle.utils.unique_name.guard())
                    parameters, optimizer = self._save_and_load(name, options, parameters, optimizer)
                if index == HALFWAY and technique == "scaled":
                    _step(parameters, optimizer, scaler, infinite(start), technique)
                _step(parameters, optimizer, scaler, update, technique)
        return [to_numpy(parameter) for parameter in parameters]

    def _make_optimizer(
        self, name: str, options: Options, technique: str, parameters: Parameters
    ) -> paddle.optimizer.Optimizer:
        make = self.find(name)
        arguments: dict[str, Any] = {"learning_rate": RATE, **options}
        trained: list[Any] = list(parameters)
        match technique:
            case "grouped":
                trained = [{"params": [parameter]} for parameter in parameters]
            case "beside-frozen":
                trained.insert(1, paddle.to_tensor(np.ones(FROZEN, np.float32), stop_gradient=True))
            case "scheduled":
                arguments["learning_rate"] = paddle.optimizer.lr.LambdaDecay(RATE, lambda _: 1.0)
            case "clipped-loosely":
                arguments["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(2.0**30)
        if technique in _SWITCHES:
            if _SWITCHES[technique] not in signature(make).parameters:
                raise Unsupported(Capability.SHIPPED_OPTIMIZERS, f"{name} has no {_SWITCHES[technique]}")
            arguments[_SWITCHES[technique]] = True
        return make(parameters=trained, **arguments)

    def _save_and_load(
        self, name: str, options: Options, parameters: Parameters, optimizer: paddle.optimizer.Optimizer
    ) -> tuple[Parameters, paddle.optimizer.Optimizer]:
        """Copies of the parameters, and a new optimizer for them that has loaded the saved state of `optimizer`."""
        file = io.BytesIO()
        paddle.save(optimizer.state_dict(), file)
        file.seek(0)
        copies = _create_parameters([to_numpy(parameter) for parameter in parameters])
        resumed = self._make_optimizer(name, options, "", copies)
        resumed.set_state_dict(paddle.load(file))
        return copies, resumed


def _create_parameters(values: Sequence[Array]) -> Parameters:
    """Parameters with the same names in each call; saved states refer to parameters by name."""
    with paddle.utils.unique_name.guard():
        layer = paddle.nn.Layer()
        return [_create_parameter(layer, value) for value in values]


def _create_parameter(layer: paddle.nn.Layer, value: Array) -> paddle.Tensor:
    initializer = paddle.nn.initializer.Assign(value.astype(np.float32))
    return layer.create_parameter(list(value.shape), dtype=value.dtype.name, default_initializer=initializer)


def _step(
    parameters: Parameters,
    optimizer: paddle.optimizer.Optimizer,
    scaler: paddle.amp.GradScaler,
    update: Sequence[Array],
    technique: str,
) -> None:
    for parameter, value in zip(parameters, update, strict=True):
        parameter.grad = scaler.scale(to_tensor(value))
    if technique == "minimized":
        optimizer.minimize(paddle.zeros([]))
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.clear_grad()
