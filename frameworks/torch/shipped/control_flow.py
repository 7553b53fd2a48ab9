"""Functions as users of PyTorch write them, and what `torch.compile` and checkpointing make of them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from frameworks.base.shipped import BaseFunctions, Function, incoming, square
from frameworks.contract import Capability, Unsupported, Values
from frameworks.torch.core.arrays import to_array


class _SineWithHalf(torch.autograd.Function):
    """A sine whose backward pass gives a half, so that a derivative of the forward pass is another one."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0] * 0.5


def _in_place(x: Tensor) -> Any:
    y = x.clone()
    y.add_(1.0).mul_(x)
    y[0] = 2.0 * y[1]
    return y


def _views(x: Tensor) -> Any:
    base = x * 2.0
    flat, row, diagonal = base.reshape(-1), base[1], base.diagonal()
    base[1, 1] = 9.0
    return flat * x.sum(), row + 1.0, diagonal.sum()


def _scatter_rows(x: Tensor) -> Any:
    places = torch.tensor([[0, 2, 1, 3], [3, 3, 0, 0], [1, 0, 2, 2], [2, 1, 1, 0]], device=x.device)
    return torch.zeros_like(x).scatter_add_(1, places, x * x)


def _fill_columns(x: Tensor) -> Any:
    out = torch.empty_like(x)
    for column in range(x.shape[1]):
        out[:, column] = x[:, : column + 1].prod(1)
    return out


def _branch(x: Tensor) -> Any:
    return x.exp() if x.sum() > 0 else x.sin()


def _loop(x: Tensor) -> Any:
    steps = 0
    while x.norm() < 40.0:
        x, steps = x * 1.5, steps + 1
    return x * steps


def _where_branches(x: Tensor) -> Any:
    y = torch.where(x > x.mean(1, keepdim=True), x.sin(), x.cos())
    return y * torch.linspace(0.25, 1.25, y.numel(), device=x.device).reshape_as(y)


def _own_backward(x: Tensor) -> Any:
    return _SineWithHalf.apply(x), torch.func.grad(lambda y: _SineWithHalf.apply(y).sum())(x)


def _jacobian(x: Tensor) -> Any:
    return torch.func.jacfwd(lambda y: (y @ y).prod(0))(x)


def _hessian(x: Tensor) -> Any:
    return torch.func.hessian(lambda y: (y * y.sin()).sum().tanh())(x[0])


def _low_jacobian(x: Tensor) -> Any:
    def sums(y: Tensor) -> Tensor:
        return torch.sum(torch.mm(torch.mm(torch.prod(y) + y, torch.sum(y) + y), torch.sum(y) + y))

    return torch.func.jacfwd(sums)(x[:3, :3].half() / 2.0).float()


def _containers(x: Tensor) -> Any:
    return {"a": x * 2.0, "b": [x.sum(), (x - 1.0,)]}


def _aliases(x: Tensor) -> Any:
    y = x * 3.0
    return y, y, y.t()


def _stop_gradient(x: Tensor) -> Any:
    with torch.no_grad():
        deviation = x.std()
    return x / deviation * x.detach()


def _determinant(x: Tensor) -> Any:
    return tuple(torch.linalg.slogdet(x + 3.0 * torch.eye(4, device=x.device)))


def _sort_rows(x: Tensor) -> Any:
    values, places = x.sort(1)
    return values.cumsum(1).flip(0), x.gather(1, places[:, :2]), x.topk(2).values


def _use_shape(x: Tensor) -> Any:
    return x.sum(0) / x.shape[0], x.new_full((x.shape[0],), 2.0) * x[:, 0]


def _low(x: Tensor) -> Any:
    with torch.autocast(x.device.type, torch.bfloat16):
        y = x @ x
    return y.float() * (x.half() * x.half()).float()


def _resize_images(x: Tensor) -> Any:
    image = x.reshape(-1, 1, 2, 2)
    low = functional.interpolate(image.half().tanh(), (5, 3), mode="bilinear")
    return low.float(), *(functional.interpolate(image, (5, 3), mode=mode) for mode in ("nearest", "area"))


def _catch_error(x: Tensor) -> Any:
    try:
        if x.shape[1] == 4:
            raise ValueError("four columns")
    except ValueError:
        return x * 2.0
    return x


_FUNCTIONS: Mapping[str, Function] = {
    "in-place": _in_place,
    "views": _views,
    "scattered": _scatter_rows,
    "filled": _fill_columns,
    "branch": _branch,
    "loop": _loop,
    "chosen": _where_branches,
    "own-backward": _own_backward,
    "jacobian": _jacobian,
    "hessian": _hessian,
    "low-jacobian": _low_jacobian,
    "containers": _containers,
    "aliases": _aliases,
    "stopped": _stop_gradient,
    "determinant": _determinant,
    "ordered": _sort_rows,
    "sized": _use_shape,
    "low": _low,
    "resized": _resize_images,
    "caught": _catch_error,
}

_DERIVATIVES = ("own-backward", "jacobian", "hessian", "low-jacobian")
"""Functions with a derivative inside."""


class TorchFunctions(BaseFunctions):
    """Compiled by the backend "aot_eager", or by the default one and in more ways.

    Args:
        device: where the input is.
        compiles: whether by the default backend.
    """

    functions = _FUNCTIONS

    def __init__(self, device: str, *, compiles: bool) -> None:
        super().__init__()
        self.device = device
        self._backend = "inductor" if compiles else "aot_eager"

    def techniques(self) -> tuple[str, ...]:
        more = ("compiled-inside", "unknown-batch") if self._backend == "inductor" else ()
        return ("compiled", *more, "recomputed", "recomputed-compiled")

    def compute(self, name: str, technique: str) -> Values:
        if technique.startswith("recomputed") and name in _DERIVATIVES:
            raise Unsupported(Capability.CONTROL_FLOW, "torch.func refuses the saved-tensor hooks of a checkpoint")
        torch.compiler.reset()
        x = torch.tensor(square(), device=self.device, requires_grad=True)
        outputs = _list_leaves(self._apply_technique(self.functions[name], technique)(x))
        values: dict[str, Any] = {f"value/{index}": to_array(output) for index, output in enumerate(outputs)}
        followed = [output for output in outputs if output.requires_grad]
        if followed:
            output_gradients = [torch.tensor(incoming(tuple(output.shape)), device=self.device) for output in followed]
            torch.autograd.backward(followed, output_gradients)
            values["gradient/0"] = None if x.grad is None else to_array(x.grad)
        return values

    def _apply_technique(self, function: Function, technique: str) -> Function:
        match technique:
            case "compiled":
                return self._compile(function)
            case "compiled-inside":
                inner = self._compile(function)
                return self._compile(lambda x: inner(x))
            case "unknown-batch":
                return self._compile(function, dynamic=True)
            case "recomputed":
                return lambda x: checkpoint(function, x, use_reentrant=False)
            case "recomputed-compiled":
                return self._compile(lambda x: checkpoint(function, x, use_reentrant=False))
        return function

    def _compile(self, function: Function, *, dynamic: bool | None = None) -> Function:
        return torch.compile(function, backend=self._backend, dynamic=dynamic)


def _list_leaves(nest: Any) -> list[Tensor]:
    if isinstance(nest, torch.Tensor):
        return [nest]
    parts = nest.values() if isinstance(nest, Mapping) else nest
    return [leaf for part in parts for leaf in _list_leaves(part)]
