"""Functions with control flow, in-place updates and derivatives, compiled by to_static or recomputed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import paddle
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional
from paddle.static import InputSpec

from frameworks.base.shipped import SIZE, BaseFunctions, Function, incoming, square
from frameworks.contract import Capability, Unsupported, Values
from frameworks.paddle.shipped import name_arrays, tensors_in

_NOT_RECOMPUTED = {
    "second": "a derivative inside the function finds no graph",
    "containers": "outputs are tensors, or a tuple of them",
}
"""Functions that recompute does not support, with the reason."""


class _SineWithHalf(PyLayer):
    """A sine whose backward pass is the constant 0.5, so that it differs from the derivative of the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return paddle.sin(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del ctx
        return gradient * 0.5


def _update_in_place(x: Any) -> Any:
    y = x.clone()
    y.add_(paddle.ones_like(y))
    y.multiply_(x)
    return y


def _assign_rows(x: Any) -> Any:
    y = x * 1.0
    y[0] = 2.0 * x[1]
    y[:, 2] = y[:, 3]
    return y


def _read_views(x: Any) -> Any:
    base = x * 2.0
    flat, row = base.reshape([-1]), base[1]
    base[1, 1] = 9.0
    return flat * x.sum(), row + 1.0


def _scatter_rows(x: Any) -> Any:
    columns = paddle.to_tensor([[0, 2, 1, 3], [3, 3, 0, 0], [1, 0, 2, 2], [2, 1, 1, 0]])
    return paddle.put_along_axis(paddle.zeros_like(x), columns, x * x, 1, reduce="add")


def _branch_on_values(x: Any) -> Any:
    if x.sum() > 0:
        return x.exp()
    return x.sin()


def _loop_three_times(x: Any) -> Any:
    y = x
    for _ in range(3):
        y = paddle.tanh(y @ x)
    return y


def _loop_on_values(x: Any) -> Any:
    y = x * 1.0
    while y.sum() < 40.0:
        y = y * 1.5
    return y


def _collect_rows(x: Any) -> Any:
    rows = []
    for index in range(4):
        rows.append(x[index] * float(index + 1))
    return paddle.stack(rows)


def _select_elements(x: Any) -> Any:
    y = paddle.where(x > x.mean(1, keepdim=True), x.sin(), x.cos())
    return y * paddle.linspace(0.25, 1.25, SIZE * SIZE).reshape([SIZE, SIZE])


def _apply_own_backward(x: Any) -> Any:
    return _SineWithHalf.apply(x) * x


def _differentiate_inside(x: Any) -> Any:
    return paddle.grad((x * paddle.tanh(x)).sum(), x, create_graph=True)[0]


def _return_containers(x: Any) -> Any:
    return {"a": x * 2.0, "b": [x.sum(), (x - 1.0,)]}


def _stop_gradient(x: Any) -> Any:
    return x / x.std().detach() * x.detach()


def _compute_determinants(x: Any) -> Any:
    sign, logarithm = paddle.linalg.slogdet(paddle.stack([x + 3.0 * paddle.eye(4)] * 3))
    return sign, logarithm


def _sort_rows(x: Any) -> Any:
    order = paddle.argsort(x, axis=1)
    return paddle.cumsum(paddle.sort(x, 1), 1), paddle.take_along_axis(x, order[:, :2], 1), paddle.topk(x, 2)[0]


def _use_shape(x: Any) -> Any:
    return x.sum(0) / x.shape[0], paddle.full([x.shape[0]], 2.0) * x[:, 0]


def _resize_images(x: Any) -> Any:
    image = x.reshape([-1, 1, 2, 2])
    return [functional.interpolate(image, [5, 3], mode=mode) for mode in ("nearest", "bilinear", "bicubic", "area")]


def _resize_low_images(x: Any) -> Any:
    low = paddle.tanh(x.astype("float16")).reshape([-1, 1, 2, 2])
    return functional.interpolate(low, [5, 3], mode="bilinear").astype("float32")


_FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "in-place": _update_in_place,
        "assigned": _assign_rows,
        "views": _read_views,
        "scattered": _scatter_rows,
        "branch": _branch_on_values,
        "loop": _loop_three_times,
        "while": _loop_on_values,
        "collected": _collect_rows,
        "chosen": _select_elements,
        "own-backward": _apply_own_backward,
        "second": _differentiate_inside,
        "containers": _return_containers,
        "stopped": _stop_gradient,
        "determinant": _compute_determinants,
        "ordered": _sort_rows,
        "sized": _use_shape,
        "resized": _resize_images,
        "low-resized": _resize_low_images,
    }
)


class PaddleFunctions(BaseFunctions):
    """Functions compiled by to_static, whole or with graph breaks, or recomputed."""

    functions = _FUNCTIONS

    def techniques(self) -> tuple[str, ...]:
        compiled = ("compiled", "compiled-with-breaks", "compiled-inside", "unknown-batch")
        return (*compiled, "recomputed", "recomputed-by-hooks")

    def compute(self, name: str, technique: str) -> Values:
        if technique.startswith("recomputed") and name in _NOT_RECOMPUTED:
            raise Unsupported(Capability.CONTROL_FLOW, f"recompute raises: {_NOT_RECOMPUTED[name]}")
        x = paddle.to_tensor(square(), stop_gradient=False)
        result = self._apply_technique(self.functions[name], technique)(x)
        outputs = tensors_in(result)
        values = name_arrays("value", outputs)
        differentiated = [output for output in outputs if not output.stop_gradient]
        if not differentiated:
            return values
        cotangents = [paddle.to_tensor(incoming(tuple(output.shape))) for output in differentiated]
        paddle.autograd.backward(differentiated, cotangents)
        return values | name_arrays("gradient", [x.grad])

    def _apply_technique(self, function: Function, technique: str) -> Function:
        static = paddle.jit.to_static
        match technique:
            case "compiled":
                return static(function, full_graph=True)
            case "compiled-with-breaks":
                return static(function, full_graph=False)
            case "compiled-inside":
                return static(_wrap(static(function, full_graph=True)), full_graph=True)
            case "unknown-batch":
                specification = [InputSpec([None, SIZE], "float32", stop_gradient=False)]
                return static(function, input_spec=specification, full_graph=True)
            case "recomputed":
                return lambda x: recompute(function, x)
            case "recomputed-by-hooks":
                return lambda x: recompute(function, x, use_reentrant=False)
        return function


def _wrap(inner: Function) -> Function:
    """A function that only calls another one."""

    def outer(x: Any) -> Any:
        return inner(x)

    return outer
