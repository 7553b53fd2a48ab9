"""Operations, layers, optimizers and control flow that Paddle ships, with examples."""

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import paddle
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional
from paddle.static import InputSpec

from fixtures.arrays import Array
from frameworks.base.shipped import (
    FACTOR,
    FROZEN,
    HALFWAY,
    RATE,
    SIZE,
    BaseFunctions,
    Function,
    ListedOptimizers,
    ListedParts,
    Options,
    gradients,
    incoming,
    infinite,
    square,
)
from frameworks.contract import Capability, Unsupported, Values
from frameworks.paddle.core.devices import to_numpy, to_tensor
from frameworks.paddle.training.optimizers import forced_scaler

Tensors = Sequence[paddle.Tensor]

_LEAF = (paddle.float32, paddle.complex64)


_SCOPES: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "without-gradient": paddle.no_grad,
    "saved-elsewhere": partial(paddle.autograd.saved_tensors_hooks, to_numpy, paddle.to_tensor),
    "scope-off": partial(paddle.amp.auto_cast, enable=False),
}


def _leaf(value: Any) -> Any:
    """A tensor from an array, with a gradient where it is floating; anything else unchanged."""
    if isinstance(value, list):
        return [_leaf(item) for item in value]
    return paddle.to_tensor(value, stop_gradient=value.dtype.kind != "f") if isinstance(value, np.ndarray) else value


def _tensors(nest: Any) -> list[paddle.Tensor]:
    return [leaf for leaf in paddle.utils.flatten(nest) if isinstance(leaf, paddle.Tensor)]


class _Parts(ListedParts):
    """Base of operations and layers."""

    file = Path(__file__).with_name("shipped.toml")
    own: tuple[str, ...]

    def techniques(self) -> tuple[str, ...]:
        return ("without-gradient", "recomputed", "saved-elsewhere", "scope-off", *self.own)

    def arguments(self, name: str) -> list[Any]:
        """The inputs of a part, new tensors each time."""
        return [_leaf(value) for value in self.inputs(name)]


def _values(call: Callable[..., Any], arguments: Sequence[Any], more: Tensors, technique: str) -> Values:
    paddle.seed(3)
    with _SCOPES.get(technique, nullcontext)():
        if technique == "recomputed":
            outputs = _tensors(recompute(call, *arguments, use_reentrant=False))
        else:
            outputs = _tensors(call(*arguments))
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
        case "recomputed":  # `paddle.grad` does not run a PyLayer, which recomputation is
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
        """The gradient of one input while no other needs one; None if no output depends on it."""
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


Parameters = list[paddle.Tensor]
_SCALE = 1024.0
_DECAYS = ("weight_decay", "lamb_weight_decay")
_SWITCHES = {"multi-precision": "multi_precision", "multi-tensor": "use_multi_tensor"}


class PaddleOptimizers(ListedOptimizers):
    """Classes of paddle.optimizer in the dynamic graph.

    Args:
        forced: a scaler works although Paddle turns it off on a CPU.
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
        taken = signature(self.find(name)).parameters
        return {decay: 0.0 for decay in _DECAYS if decay in taken and taken[decay].default}

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        parameters = _parameters(start)
        optimizer = self._make_optimizer(name, options, technique, parameters)
        with ExitStack() as open_scopes:
            open_scopes.enter_context(paddle.utils.unique_name.guard())
            if technique == "scaled":
                open_scopes.enter_context(forced_scaler())
            scaler = paddle.amp.GradScaler(init_loss_scaling=_SCALE, enable=technique == "scaled")
            for number, update in enumerate(gradients(start, technique)):
                if number == HALFWAY and technique == "loaded":
                    open_scopes.enter_context(paddle.utils.unique_name.guard())
                    parameters, optimizer = self._save_and_load(name, options, parameters, optimizer)
                if number == HALFWAY and technique == "scaled":
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
        """New parameters with the values of these, and a new optimizer with the saved state of this one."""
        file = io.BytesIO()
        paddle.save(optimizer.state_dict(), file)
        file.seek(0)
        others = _parameters([to_numpy(parameter) for parameter in parameters])
        other = self._make_optimizer(name, options, "", others)
        other.set_state_dict(paddle.load(file))
        return others, other


def _parameters(values: Sequence[Array]) -> Parameters:
    """Parameters with the same names each time, by which a state refers to them."""
    with paddle.utils.unique_name.guard():
        layer = paddle.nn.Layer()
        return [_parameter(layer, value) for value in values]


def _parameter(layer: paddle.nn.Layer, value: Array) -> paddle.Tensor:
    assigned = paddle.nn.initializer.Assign(value.astype(np.float32))
    return layer.create_parameter(list(value.shape), dtype=value.dtype.name, default_initializer=assigned)


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


class _SineWithHalf(PyLayer):
    """A sine with a wrong backward pass, the constant 0.5, so that it differs from the derivative of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return paddle.sin(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del ctx
        return gradient * 0.5


def _in_place(x: Any) -> Any:
    y = x.clone()
    y.add_(paddle.ones_like(y))
    y.multiply_(x)
    return y


def _assign_rows(x: Any) -> Any:
    y = x * 1.0
    y[0] = 2.0 * x[1]
    y[:, 2] = y[:, 3]
    return y


def _views(x: Any) -> Any:
    base = x * 2.0
    flat, row = base.reshape([-1]), base[1]
    base[1, 1] = 9.0
    return flat * x.sum(), row + 1.0


def _scatter_rows(x: Any) -> Any:
    places = paddle.to_tensor([[0, 2, 1, 3], [3, 3, 0, 0], [1, 0, 2, 2], [2, 1, 1, 0]])
    return paddle.put_along_axis(paddle.zeros_like(x), places, x * x, 1, reduce="add")


def _branch(x: Any) -> Any:
    if x.sum() > 0:
        return x.exp()
    return x.sin()


def _loop(x: Any) -> Any:
    y = x
    for _ in range(3):
        y = paddle.tanh(y @ x)
    return y


def _while(x: Any) -> Any:
    y = x * 1.0
    while y.sum() < 40.0:
        y = y * 1.5
    return y


def _collect_rows(x: Any) -> Any:
    rows = []
    for index in range(4):
        rows.append(x[index] * float(index + 1))
    return paddle.stack(rows)


def _where_branches(x: Any) -> Any:
    y = paddle.where(x > x.mean(1, keepdim=True), x.sin(), x.cos())
    return y * paddle.linspace(0.25, 1.25, SIZE * SIZE).reshape([SIZE, SIZE])


def _own_backward(x: Any) -> Any:
    return _SineWithHalf.apply(x) * x


def _second(x: Any) -> Any:
    return paddle.grad((x * paddle.tanh(x)).sum(), x, create_graph=True)[0]


def _containers(x: Any) -> Any:
    return {"a": x * 2.0, "b": [x.sum(), (x - 1.0,)]}


def _stop_gradient(x: Any) -> Any:
    return x / x.std().detach() * x.detach()


def _determinant(x: Any) -> Any:
    sign, logarithm = paddle.linalg.slogdet(paddle.stack([x + 3.0 * paddle.eye(4)] * 3))
    return sign, logarithm


def _sort_rows(x: Any) -> Any:
    places = paddle.argsort(x, axis=1)
    return paddle.cumsum(paddle.sort(x, 1), 1), paddle.take_along_axis(x, places[:, :2], 1), paddle.topk(x, 2)[0]


def _use_shape(x: Any) -> Any:
    return x.sum(0) / x.shape[0], paddle.full([x.shape[0]], 2.0) * x[:, 0]


def _resize_images(x: Any) -> Any:
    image = x.reshape([-1, 1, 2, 2])
    return [functional.interpolate(image, [5, 3], mode=mode) for mode in ("nearest", "bilinear", "bicubic", "area")]


def _low_resized(x: Any) -> Any:
    low = paddle.tanh(x.astype("float16")).reshape([-1, 1, 2, 2])
    return functional.interpolate(low, [5, 3], mode="bilinear").astype("float32")


_FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "in-place": _in_place,
        "assigned": _assign_rows,
        "views": _views,
        "scattered": _scatter_rows,
        "branch": _branch,
        "loop": _loop,
        "while": _while,
        "collected": _collect_rows,
        "chosen": _where_branches,
        "own-backward": _own_backward,
        "second": _second,
        "containers": _containers,
        "stopped": _stop_gradient,
        "determinant": _determinant,
        "ordered": _sort_rows,
        "sized": _use_shape,
        "resized": _resize_images,
        "low-resized": _low_resized,
    }
)


_NOT_RECOMPUTED = {
    "second": "a derivative inside the function finds no graph",
    "containers": "outputs are tensors, or a tuple of them",
}


class PaddleFunctions(BaseFunctions):
    """Functions compiled by to_static, whole or with graph breaks."""

    functions = _FUNCTIONS

    def techniques(self) -> tuple[str, ...]:
        compiled = ("compiled", "compiled-with-breaks", "compiled-inside", "unknown-batch")
        return (*compiled, "recomputed", "recomputed-by-hooks")

    def compute(self, name: str, technique: str) -> Values:
        if technique.startswith("recomputed") and name in _NOT_RECOMPUTED:
            raise Unsupported(Capability.CONTROL_FLOW, f"recompute raises: {_NOT_RECOMPUTED[name]}")
        x = paddle.to_tensor(square(), stop_gradient=False)
        result = self._apply_technique(self.functions[name], technique)(x)
        outputs = _tensors(result)
        values: dict[str, Any] = {f"value/{index}": to_numpy(output) for index, output in enumerate(outputs)}
        followed = [output for output in outputs if not output.stop_gradient]
        if followed:
            paddle.autograd.backward(followed, [paddle.to_tensor(incoming(tuple(output.shape))) for output in followed])
            values["gradient/0"] = None if x.grad is None else to_numpy(x.grad)
        return values

    def _apply_technique(self, function: Function, technique: str) -> Function:
        static = paddle.jit.to_static
        match technique:
            case "compiled":
                return static(function, full_graph=True)
            case "compiled-with-breaks":
                return static(function, full_graph=False)
            case "compiled-inside":
                return static(_outer(static(function, full_graph=True)), full_graph=True)
            case "unknown-batch":
                known = [InputSpec([None, SIZE], "float32", stop_gradient=False)]
                return static(function, input_spec=known, full_graph=True)
            case "recomputed":
                return lambda x: recompute(function, x)
            case "recomputed-by-hooks":
                return lambda x: recompute(function, x, use_reentrant=False)
        return function


def _outer(inner: Any) -> Function:
    def outer(x: Any) -> Any:
        return inner(x)

    return outer
